"""Other libraries: AllenNLP's names for what relmo does, and relmo as a part of scikit-learn, spaCy and others.

A file needs its own library and is imported by whoever uses that."""
