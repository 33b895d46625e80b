"""The route of embeddings: texts or token ids in, vectors out. Stands on the routes of answers."""
