"""The version of everything here."""

__version__ = "0.1.0"
