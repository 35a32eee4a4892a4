"""HTTP layer of relmo's servers: `guard` checks requests, `connections` limits sockets and ends idle ones.

It needs starlette and uvicorn, and knows no models.
"""
