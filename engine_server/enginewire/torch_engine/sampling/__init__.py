"""From logits to tokens: rules, draws, log-probabilities, beams. Knows nothing about models."""
