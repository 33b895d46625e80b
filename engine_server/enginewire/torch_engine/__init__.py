"""The reference engine in plain torch: a scheduler, a paged KV cache and one step thread.

Knows nothing about gRPC or the shell. Importing this package imports no torch: only the step
thread does, so that one thread alone ever enters it.
"""
