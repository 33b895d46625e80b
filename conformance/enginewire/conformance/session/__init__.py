"""What checks work with at one target: measured bounds, requests, features, waiting.

Judges nothing itself.
"""
