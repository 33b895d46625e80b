"""POST /v1/messages, the API of Anthropic, on the same way as a chat completion."""
