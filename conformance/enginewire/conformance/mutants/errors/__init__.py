"""Servers that fail `checks/errors`."""
