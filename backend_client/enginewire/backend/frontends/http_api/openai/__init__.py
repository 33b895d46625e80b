"""The routes of OpenAI and vLLM: fields in, answers and events out. Knows nothing about sockets."""
