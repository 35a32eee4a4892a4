"""The model names: relmo.load("names")."""
