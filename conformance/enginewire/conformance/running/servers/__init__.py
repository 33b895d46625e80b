"""Servers under test that a run has started, as processes or in this one. Judges nothing."""
