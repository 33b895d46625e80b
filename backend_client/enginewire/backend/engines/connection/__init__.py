"""The connection to one engine: its channel and its RPCs, one stream for all requests or a call for each.

Knows nothing about other engines.
"""
