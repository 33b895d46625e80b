"""What a backend does right now and has done since it began. Knows nothing about how it is shown."""
