"""Servers that fail `checks/streams`."""
