"""Servers that fail `checks/scheduling`."""
