"""Every setting with its default and its documentation, a file a kind; no torch, so that `--help` answers at once.

`kinds.py` is the table of all kinds of model. `arguments.py` checks what callers give to functions.
"""
