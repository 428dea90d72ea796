"""Claims of interview guides: statements, tests fixed in advance, and computed verdicts (see README.md)."""
