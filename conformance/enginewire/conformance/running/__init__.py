"""Which checks run, in which order, and what came of them. Knows no single check."""
