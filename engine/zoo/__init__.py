"""The shipped models: an invented manga shop, its corpus, training, evaluation and export."""
