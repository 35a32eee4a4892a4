"""Layers in plain torch, the definition and its faster twins (`kernels/`). They know no settings, no text, no files."""
