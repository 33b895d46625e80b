"""A Hugging Face model folder as facts: where it is, what its files say. Knows nothing about computing."""
