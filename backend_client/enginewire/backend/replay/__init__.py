"""One request and the engines it is sent to, one after the other. Knows nothing about callers."""
