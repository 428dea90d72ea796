"""A block manager with reference counts that nobody counts."""
