"""The prompts of one request: what they have become, and the outputs that follow them."""
