"""Second answers, computed without the engine: closed forms and small simulations.

An oracle imports neither the engine nor an experiment (import-linter checks it), so an error in one shows as a
difference.
"""
