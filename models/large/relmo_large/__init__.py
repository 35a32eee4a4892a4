"""The model large: relmo.load("large")."""
