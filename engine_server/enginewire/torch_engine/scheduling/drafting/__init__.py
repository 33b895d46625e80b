"""Drafts: tokens that are guessed, and computed beside the one they follow."""
