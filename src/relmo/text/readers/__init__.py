"""Readers of task examples, one module per family of formats; every error names the file and the line."""
