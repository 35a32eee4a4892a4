"""`python -m experiments cells`: what each recurrent cell can and cannot do, in one table.

    tasks.py      formal tasks, trained short and tested long
    train.py      training of all seeds of a cell at once
    language.py   language models on a fixed budget; speed
    jobs.py       measurements and their records, from which a stopped run resumes
    table.py      tables and the picture

All cells have the protocol of `train.Protocol` and the budgets of `language`, and about as many recurrent weights as an
LSTM of a fixed size; no cell is tuned.
"""
