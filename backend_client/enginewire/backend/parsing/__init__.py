"""From what a model says to thinking, text and calls of tools.

Knows nothing about tokens, prompts and HTTP.
"""
