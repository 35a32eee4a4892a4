"""Other tools' names for what relmo does, so that old scripts run with one import changed."""
