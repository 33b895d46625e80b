"""Projections with weights of 4 bits: their grids, how they lie in memory, their products. Knows no model."""
