"""Images in prompts, as a toy: see README.md."""
