"""Servers that fail `checks/options`."""
