"""HTTP as all of relmo's servers speak it: `guard` says who may ask and how much, `connections` holds sockets and ends
those whose clients do nothing. It needs starlette and uvicorn, and knows no models."""
