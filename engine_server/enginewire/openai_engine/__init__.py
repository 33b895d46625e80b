"""A completions server of others as an engine of ours: llama.cpp's `llama-server`, or `vllm serve`.

It takes and returns token ids over HTTP; the texts that it could make are the backend's. The server is not
ours to start or to end.
"""
