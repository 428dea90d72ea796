"""Serving without a model: the engine's scheduler and KV manager, a virtual clock, and a cost for every step."""
