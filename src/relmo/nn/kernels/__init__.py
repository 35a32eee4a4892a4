"""Faster twins of what other modules define: one file for each kind of machine."""
