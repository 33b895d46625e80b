"""What requests are for: their kinds, who is alive, and what they are told. Knows nothing about models."""
