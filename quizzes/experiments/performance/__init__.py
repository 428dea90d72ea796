"""Time of a step: bytes, arithmetic, launches, the host."""
