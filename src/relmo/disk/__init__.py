"""Files of any kind: read within bounds, compared with their digests, written whole or not at all.

It knows no models and imports nothing but `errors`.
"""
