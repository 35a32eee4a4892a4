"""Integrations with other libraries: AllenNLP's API for ELMo, and relmo in scikit-learn, spaCy and others.

Each module needs its own library and is imported only by its users."""
