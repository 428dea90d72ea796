"""Programs of prep guides, run and checked."""
