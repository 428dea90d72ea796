"""From logits to tokens: noise, top-p and other filters, penalties, draft acceptance, log-probabilities."""
