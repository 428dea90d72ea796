"""JSON schemas in one canonical form, from which both backends are compiled; `engine.grammar.json_schema` begins it."""
