"""Bugs that only show under a second condition: with another option, another request, another length."""
