"""Executors: run workers in this process, in child processes or as Ray actors."""
