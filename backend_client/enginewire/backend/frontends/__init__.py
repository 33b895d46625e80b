"""The faces of the backend towards its callers: gRPC, HTTP like OpenAI's, a worker of SMG."""
