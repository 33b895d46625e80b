"""What is told of requests beside their answers: metrics, traces and a line of the log."""
