"""Models over HTTP for many clients: embed, predict, surprisal, generate.

`server` handles HTTP, `endpoints` parses requests and encodes responses, `workers` computes requests in
batches, `admission` limits the load, `metrics` counts, `openapi` describes the service.
"""
