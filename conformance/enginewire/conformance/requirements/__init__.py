"""The sentences of the contract: all of them as data, and which are asked of whom. Runs nothing."""
