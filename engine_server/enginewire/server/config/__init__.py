"""The options of the engine server, and which of them make no sense. Knows nothing about engines."""
