"""The backend: turns an engine's tokens into text. Never imports torch or transformers."""
