"""Images in prompts with a toy encoder: see README.md."""
