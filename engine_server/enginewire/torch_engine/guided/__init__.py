"""Grammars: compiled in another process, followed token by token.

Knows nothing about scheduling or models.
"""
