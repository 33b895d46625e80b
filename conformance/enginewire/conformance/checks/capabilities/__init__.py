"""What an engine need not have: adapters, embeddings, grammars, hand-over, KV events, traces."""
