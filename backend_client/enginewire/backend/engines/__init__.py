"""The engines a backend talks to: connections, streams, and which engine is next.

Knows nothing about text.
"""
