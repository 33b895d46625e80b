"""What the engine server exports about itself and its engine, for Prometheus."""
