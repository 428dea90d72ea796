"""Capacity: the load that a model on a GPU can serve, by formulas that explain themselves and by simulation."""
