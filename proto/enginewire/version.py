"""The version of everything here."""

__version__ = "0.2.0"
