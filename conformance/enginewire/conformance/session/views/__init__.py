"""What a target shows beside its answers: KV events, metrics, the texts of its tokens. Judges nothing."""
