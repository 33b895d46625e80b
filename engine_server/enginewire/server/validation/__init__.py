"""Is this a request that the engine may be given? Knows the contract, and nothing about engines or calls."""
