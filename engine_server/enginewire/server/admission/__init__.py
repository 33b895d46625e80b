"""Requests inside the engine: who may come in, where their outputs go, when they end.

Knows nothing about gRPC.
"""
