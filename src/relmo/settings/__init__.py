"""Settings with their defaults, types, bounds and documentation, one module per kind of model; no torch."""
