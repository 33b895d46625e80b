"""From options to a warm engine core. Works before the first step only."""
