"""KV that goes from a prefill engine to a decode engine on the same host, as files in a private folder."""
