"""How answers come: the shape of streams, one by one and multiplexed, usage, events, resuming, messages."""
