"""Text in, integers out: tokens, vocabularies, corpora, and the files of the field (`readers/`). numpy, never torch."""
