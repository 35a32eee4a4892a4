"""`python -m experiments elmo-table`: six tasks with and without ELMo, beside the tables of the paper.

    rows.py           the six tasks: files, networks, settings, published scores
    plan.py           trainings of each table
    fine_tuning.py    biLMs fine-tuned on the text of each task
    report.py         whole command: train what is missing, then write tables and figures
    tables.py         scores as tables and Markdown
    figures.py        scores as figures
    slices.py         tiny files for `--reduced`

    Peters et al. 2018, Deep contextualized word representations

Table 1 of the paper compares a network for each task with the same network with ELMo. Table 2 varies the layers of the
biLM and the penalty on their weights, Table 3 the place of ELMo in the network; figure 2 shows the layer weights.

Every score comes from `relmo train` (run by `experiments/trainings.py`) and is that of the best epoch on the
development set. The paper's Table 1 has test sets, its other tables development sets.
"""
