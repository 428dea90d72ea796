"""From logits to tokens: noise (rng), filters and choice (sampler), edits (processors), log-probabilities."""
