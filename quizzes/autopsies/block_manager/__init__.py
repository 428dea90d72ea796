"""A block manager that never updates its reference counts."""
