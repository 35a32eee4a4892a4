"""Explorer: a model's units over a text, in a browser or in one self-contained page.

The server sends numbers as JSON and the page draws them; the same answers feed an exported page and a notebook.
`server` knows HTTP and no torch, `session` models and texts and no HTTP.
"""
