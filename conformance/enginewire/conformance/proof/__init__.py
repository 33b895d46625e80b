"""The proof of the kit: every mutant fails exactly its checks, and the tables that say so."""
