"""HTTP layer of servers, with starlette and uvicorn: `guard` checks requests, `connections` ends idle sockets."""
