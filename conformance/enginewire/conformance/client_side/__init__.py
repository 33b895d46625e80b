"""The other half of the kit: a scripted engine that judges backends."""
