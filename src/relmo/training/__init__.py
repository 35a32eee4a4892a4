"""The one training loop and what it needs: batches, the optimiser, recorded steps, several processes.

It knows no files, and nothing of any one kind of model.
"""
