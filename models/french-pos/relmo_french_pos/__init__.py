"""The model french-pos: relmo.load("french-pos")."""
