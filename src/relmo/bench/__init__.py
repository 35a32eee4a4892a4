"""The speed table of this machine (`relmo bench`): embedding and training of a bidirectional language model. They are
timed against the same model as others compute it, and against the floor that the machine's arithmetic sets.

    textbook.py     peers: the loop of the old PyTorch tools, and torch's own LSTM, from the same weights
    floor.py        the least work there is, counted
    machine.py      what the machine is, how fast it multiplies matrices, whether it is busy
    clock.py        interleaved rounds
    embedding.py    what is timed of embedding
    training.py     what is timed of training
    lstms.py        what is timed of the LSTMs alone
    exploring.py    what is timed of the explorer
    table.py        the whole table
"""
