"""Faulty programs from interview guides: learners predict their behaviour, then repair them.

<folder>/given.py      the program, rewritten with the faults of the original
<folder>/probes.py     uses of the program: each returns plain values, or raises what the program raises
<folder>/checks.py     requirements on a repair: functions check_*, one sentence each, none hidden
<folder>/solution.py   passes all of them
mutants.py             plausible repairs that are still wrong, each with the check that catches it
"""
