"""What vLLM's prefix cache does, for subscribers. Importing the package imports no vLLM."""
