"""Programs that prep guides give as answers, with their faults: to be predicted, then mended.

<folder>/given.py      the program, written anew with the faults of the original
<folder>/probes.py     what happens when it is used: each returns plain values, or raises what the program raises
<folder>/checks.py     what a mended one must do: functions check_*, one sentence each, no hidden ones
<folder>/solution.py   passes all of them
<folder>/mutants.py    plausible repairs that are still wrong, each with the check that catches it
"""
