"""The reference with what not every server has: a role in disaggregation, API keys, TLS, traces."""
