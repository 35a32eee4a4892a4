"""Readers of task examples, one module per family of formats; every error names the file and the line.

    tagged.py     tagged words: CoNLL-U, columns (CoNLL, IOB2), JSON lines
    labelled.py   labelled texts: bracketed trees (SST), CoLA, tables, JSON lines, a folder of texts for each label
    pairs.py      pairs of texts: SNLI, SICK and other tables, STS-B, JSON lines
    parallel.py   sources and targets: parallel files, tables, JSON lines
    roles.py      predicates with their roles: JSON lines, CoNLL-2005, CoNLL-2012, PropBank
    coref.py      documents with coreference: CoNLL-2012, OntoGUM, JSON lines
    reading.py    passages, questions and answers: SQuAD, tables, JSON lines
    tables.py     rows of tables and JSON lines, and the names of their columns

Raw text is split by the given function; CoNLL files, trees and lists of words in JSON are tokenized already.
"""
