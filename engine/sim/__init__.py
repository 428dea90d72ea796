"""The engine without a model: the same scheduler and KV manager, a virtual clock, and a price for every step."""
