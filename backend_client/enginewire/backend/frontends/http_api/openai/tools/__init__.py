"""The fields of a chat completion about tools, and the grammar that they make. Sans-IO."""
