"""Which units of a network stand for what, and models beside each other."""
