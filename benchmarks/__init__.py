"""Speed tables (`python -m benchmarks`, `make bench`): embedding and training of a biLM, sequence to sequence, the
explorer. relmo is timed against other implementations of the same model and against the floor of the machine's
arithmetic. Not part of the installed package.

    textbook.py      peers: the loop of the old PyTorch tools, and torch's LSTM, with the same weights
    floor.py         operation counts of the least work
    machine.py       description, matrix product rates and load of the machine
    clock.py         interleaved timing
    embedding.py  training.py  lstms.py  translation.py  explorer.py     the timed cases
    table.py         the whole report

    growth.py  lm_throughput.py  plan_times.py  explorer_times.py        further measurements: python -m benchmarks.NAME
"""
