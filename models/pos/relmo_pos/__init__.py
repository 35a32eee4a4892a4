"""The model pos: relmo.load("pos")."""
