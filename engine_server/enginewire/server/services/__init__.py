"""The RPCs of the contract: check, call, stream; errors are mapped in `handlers`.

Knows no engine but by its interface.
"""
