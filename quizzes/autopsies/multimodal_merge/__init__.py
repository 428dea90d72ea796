"""Images put behind the text, wherever they belong."""
