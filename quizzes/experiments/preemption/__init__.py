"""Running out of memory: E17, E18, E53."""
