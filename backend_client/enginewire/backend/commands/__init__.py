"""What is typed: generate, jsonl, serve, demo, top. Knows its options and calls the rest."""
