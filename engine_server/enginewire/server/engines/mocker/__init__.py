"""An engine without a model: same scheduling, accounting and failures, invented tokens.

Knows nothing about gRPC.
"""
