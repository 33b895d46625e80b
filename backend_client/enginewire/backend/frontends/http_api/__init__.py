"""The OpenAI-compatible HTTP face. Needs the extra `http`, so it is loaded only when it is asked for."""
