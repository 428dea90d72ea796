"""Programs on top of the engine: the command line (`app.cli`) and the benchmarks (`app.bench`)."""
