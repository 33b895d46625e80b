"""Requests of the contract as requests of vLLM, or refused. Importing the package imports no vLLM."""
