"""Which sequences run in the next step, and in which KV blocks. Knows nothing about torch."""
