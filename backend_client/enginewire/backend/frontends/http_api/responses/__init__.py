"""The Responses API of OpenAI: one answer as items, without storage. Stands on the routes of answers."""
