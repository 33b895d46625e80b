"""The fields that become a prompt: messages, what templates read, and what the tokenizer has to do."""
