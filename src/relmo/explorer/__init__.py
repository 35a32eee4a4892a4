"""The explorer: a model's units over a text, in a browser or in one self-contained page.

The server gives numbers as JSON and the page draws them; the same answers, put together as a bundle, feed an exported
page and a notebook. `server` knows HTTP and no torch, `session` models and texts and no HTTP.
"""
