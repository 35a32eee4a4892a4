"""Settings with their defaults, types, bounds and documentation; no torch."""
