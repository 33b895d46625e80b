"""One call over ASGI: its body, the way back to its caller, and what goes wrong between the two."""
