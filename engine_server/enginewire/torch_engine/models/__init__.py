"""The models: our own decoder, and those of transformers. Knows nothing about requests that wait."""
