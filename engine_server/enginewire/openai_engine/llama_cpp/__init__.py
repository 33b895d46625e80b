"""llama.cpp's `llama-server`: its facts, its requests, and the tokens that its streams leave out."""
