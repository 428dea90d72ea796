"""Drafters: who guesses the next tokens, so that the model can check several of them in one step."""
