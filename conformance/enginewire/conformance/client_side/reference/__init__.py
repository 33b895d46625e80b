"""A backend that keeps the contract, as plainly as it can be written."""
