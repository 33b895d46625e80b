"""Models of transformers behind the face of our own. Their attention runs on our KV blocks."""
