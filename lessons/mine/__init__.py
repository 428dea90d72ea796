"""The learner's engine: their pieces behind the engine's seams."""
