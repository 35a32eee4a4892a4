"""Examples of tasks from the files of the field, a file a family of formats; every error says file and line.

    tagged.py     tagged words: CoNLL-U, columns (CoNLL, IOB2), JSON lines
    labelled.py   labelled texts: trees in brackets (SST), CoLA, tables, JSON lines, a folder of texts for each label
    pairs.py      pairs of texts: SNLI, SICK and other tables, STS-B, JSON lines
    roles.py      predicates with their roles: JSON lines, CoNLL-2005, CoNLL-2012, PropBank
    coref.py      documents with coreference: CoNLL-2012, OntoGUM, JSON lines
    reading.py    passages, questions and answers: SQuAD, tables, JSON lines
    tables.py     what tables and JSON lines share: their rows, and the names of columns that are looked for
    lines.py      the lines of any file, with their places

Raw text is split by the function that is given; CoNLL files, trees and lists of words in JSON are split already.
"""
