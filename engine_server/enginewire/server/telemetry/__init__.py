"""What is told of requests beside their answers: metrics and traces, each only where it was asked for."""
