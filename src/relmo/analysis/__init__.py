"""Analyses of recurrent networks: recorded states, interventions, memory, meaning, syntax, single units."""
