"""Enginewire: the contract between an LLM engine and the backend in front of it."""

__version__ = "0.1.0"
