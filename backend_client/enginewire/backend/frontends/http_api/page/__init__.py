"""The page at /: what a backend does right now. Knows nothing about the other routes."""
