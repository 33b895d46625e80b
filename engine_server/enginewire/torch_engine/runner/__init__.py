"""One forward of a step: flat tensors in, logits and vectors out.

Knows nothing about who was scheduled why.
"""
