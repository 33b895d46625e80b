"""From what a caller says to token ids: tokenizer, chat template, annotations.

Knows nothing about engines.
"""
