"""The proof of the kit: every mutant fails exactly its checks, and the tables that say so.

What it knows of a requirement, an example and what breaks it, is told to whoever has to fulfil it.
"""
