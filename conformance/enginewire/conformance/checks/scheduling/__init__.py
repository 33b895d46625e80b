"""Requests beside each other: slots, the queue, deadlines, abort, and callers who leave."""
