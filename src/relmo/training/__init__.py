"""The one training loop and what it needs: batches, the optimiser, recorded steps, several processes;
and the plan that tells what a run will take.

It knows no files, and nothing of any one kind of model.
"""
