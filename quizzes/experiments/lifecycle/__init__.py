"""One request from its prompt to its last byte: E14, E66."""
