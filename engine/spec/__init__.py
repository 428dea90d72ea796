"""Drafters: they propose tokens that the model checks several at a time. Start with README.md."""
