"""`relmo reproduce elmo-table`: six tasks, plain and with ELMo, beside the tables of the paper.

    rows.py       the six tasks: their files, networks, settings, and what the paper has
    plan.py       which trainings a table is made of
    make.py       the whole: what is missing is trained, then tables and pictures are written
    tables.py     what the finished ones scored, as tables and Markdown
    pictures.py   the same, drawn
    bilms.py      what a biLM is, in a line
    slices.py     tiny files, for `--reduced`

    Peters et al. 2018, Deep contextualized word representations

The paper's Table 1 sets a network for each task against the same network with ELMo. Its other tables ask which layers
of the biLM to take, with how strong a penalty on their weights (Table 2), and where in the network to put them
(Table 3); figure 2 shows the weights that the layers get.

Every figure comes from `relmo train` (`reproduce/trainings.py` runs it) and is the score of the best epoch on the
development set. The paper's Table 1 has test sets, its other tables development sets.
"""
