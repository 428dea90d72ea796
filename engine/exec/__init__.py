"""Where workers run: in this process so far."""
