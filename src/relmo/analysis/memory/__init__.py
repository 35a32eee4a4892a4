"""How far back a network remembers: gradients, Jacobians, truncation, counting."""
