"""Adapters: their files, and what they add to the projections of a model. Knows nothing about requests."""
