"""Kernels of our own, in C++ and for Triton, and what builds and keeps them. Knows no model, no weights."""
