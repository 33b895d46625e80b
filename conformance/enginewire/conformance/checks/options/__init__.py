"""What fields of a request ask for: stops, sampling, log-probabilities, limits, and drawn mixes of them."""
