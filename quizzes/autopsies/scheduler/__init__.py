"""A scheduler with a limit that it forgets while it admits."""
