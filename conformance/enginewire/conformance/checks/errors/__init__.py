"""Mistakes of callers, and what their refusals look like."""
