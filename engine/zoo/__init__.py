"""The shipped models: an invented manga shop, the corpus that teaches it, training, evaluation and export."""
