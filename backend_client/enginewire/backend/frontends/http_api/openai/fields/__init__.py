"""The fields that requests share: read from a body, and back to the key at fault."""
