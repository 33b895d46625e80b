"""What comes out of the steps of vLLM, as the contract has it. Importing the package imports no vLLM."""
