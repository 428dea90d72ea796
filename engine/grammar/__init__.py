"""Structured outputs: grammars that restrict the next token. JSON schemas, regular expressions, choices."""
