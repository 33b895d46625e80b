"""Token ids in, text and the reason to stop out. Sans-IO: knows nothing about calls or time."""
