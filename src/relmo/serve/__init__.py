"""Models over HTTP for many clients: embed, predict, surprisal, generate.

`server` handles HTTP and counts requests, `endpoints` parses requests and encodes responses, `workers` admits requests
and computes them in batches.
"""
