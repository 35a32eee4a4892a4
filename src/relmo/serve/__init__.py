"""Models over HTTP for many clients at once: embed, predict, surprisal, generate.

`server` speaks HTTP, `verbs` knows what is asked of a model and how its answer is written, `batching` puts the requests
of many clients together, `growth` does so for texts that are generated, `admission` refuses what would be too much,
`metrics` counts, `openapi` describes it all.
"""
