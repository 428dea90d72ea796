"""Where a step's time goes: bytes, arithmetic, launches, the host."""
