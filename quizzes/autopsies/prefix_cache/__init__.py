"""A prefix cache that knows whole prompts only."""
