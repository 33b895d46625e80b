"""Requests on their way to a slot of the engine: limits, an order that is fair, turns. Knows no outputs."""
