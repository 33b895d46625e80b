"""The fields of a chat completion that become its prompt: messages, and what templates read. Sans-IO."""
