"""Second answers, worked out without the engine: closed forms and small simulations on paper.

An oracle imports neither the engine nor an experiment (import-linter checks it), so that the two can only agree by
both being right.
"""
