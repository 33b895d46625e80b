"""Calls to a target, recorded as they were seen: connections, streams, processes, time. Judges nothing."""
