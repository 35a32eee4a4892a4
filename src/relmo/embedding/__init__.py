"""Sentences to contextual vectors: the engine, what it keeps of words, and files and caches of vectors."""
