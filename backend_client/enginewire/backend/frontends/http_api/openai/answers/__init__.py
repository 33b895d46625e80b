"""What the text of an answer means, and the message that it becomes. Sans-IO."""
