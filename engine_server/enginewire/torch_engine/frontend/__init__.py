"""The event loop's side of the engine: what calls wait for and ask about. Knows nothing about tensors."""
