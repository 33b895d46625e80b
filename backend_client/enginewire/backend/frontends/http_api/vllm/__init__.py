"""Routes that vLLM adds to those of OpenAI: adapters, and tokens of prompts."""
