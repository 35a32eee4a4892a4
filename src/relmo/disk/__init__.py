"""File access for all formats: bounded reading, digests, atomic writing. It knows nothing of models."""
