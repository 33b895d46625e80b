"""What log-probabilities say about how tokens were drawn: rows, positions, requests that give them."""
