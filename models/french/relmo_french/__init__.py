"""The model french: relmo.load("french")."""
