"""Servers that fail `checks/server`."""
