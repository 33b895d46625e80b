"""Servers that fail `checks/capabilities`."""
