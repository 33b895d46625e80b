"""The faces of the backend towards its callers: a command, lines of JSON, a gRPC service."""
