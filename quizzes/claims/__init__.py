"""Claims of prep guides before the engine: what they say, the test fixed in advance, the verdict (see README.md)."""
