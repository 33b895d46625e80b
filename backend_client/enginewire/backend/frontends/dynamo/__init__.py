"""A worker of Dynamo: its frontend makes the text, an engine of the contract the tokens.

Dynamo itself, the package `ai-dynamo-runtime`, is imported in `runtime` alone, when a worker starts.
"""
