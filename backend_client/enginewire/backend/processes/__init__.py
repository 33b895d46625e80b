"""Programs that run beside this one, and the signals that end this one. Knows nothing about requests."""
