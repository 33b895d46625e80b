"""Drawn cases for backends: what an engine says at random, and what every backend has to make of it.

`case` is one request with the answer of its engine, `draw` makes cases from a seed, `text` decodes as plainly
as can be, `predict` tells what is due, `play` stages a case, `judge` compares, `shrink` finds the smallest
case that still fails, and `findings` does all of it for a backend.
"""
