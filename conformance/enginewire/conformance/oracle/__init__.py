"""The greedy run as an oracle: from a known answer the end of any mix of options can be told beforehand.

`case` is one such mix, `draw` makes them from a seed, `predict` tells the end, `ask` sends them, `judge`
compares, `shrink` finds the smallest case that still fails, and `findings` does all of it for a target.
"""
