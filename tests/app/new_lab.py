"""The skeleton of `prep new lab my_lab`, filled in: a lab that keeps the last numbers and their sum."""

from __future__ import annotations

SOLUTION = '''\
"""Lab my-lab: keep the last numbers and their sum.

The seam is a window of latencies, as in engine/server/metrics.py.
"""

from __future__ import annotations


class MyLab:
    """A window."""

    def __init__(self, size: int) -> None:
        """Start empty. Raises ValueError unless size >= 1."""
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size, self.numbers = size, []

    def add(self, number: int) -> int:
        """Add a number and return the sum of the last `size` numbers."""
        self.numbers.append(number)
        return sum(self.numbers[-self.size :])
'''
CHECKS = '''\
"""Checks of the lab my-lab, which compare with sums by hand."""

from __future__ import annotations

from lessons.course.checking import Learner, check, refused, same

LAB = "my-lab"


@check(LAB)
def no_size_is_refused(learner: Learner) -> None:
    """A size below 1 raises ValueError."""
    for size in (0, -1):
        refused(f"MyLab({size})", learner.new, "MyLab", size)


@check(LAB)
def the_last_numbers_count(learner: Learner) -> None:
    """The sum is that of the last `size` numbers."""
    window, said = learner.new("MyLab", 2), ["MyLab(2)"]
    for number, total in ((5, 5), (1, 6), (-3, -2), (7, 4)):
        said.append(f"add({number})")
        same("the sum is", window.add(number), total, said)
'''
MUTANTS = '''\
"""Plausible wrong files of the lab my-lab, each with the check that must reject it."""

MUTANTS = """
my-lab no_size_is_refused: any size
-        if size < 1:
+        if size is None:
my-lab no_size_is_refused: zero is a size
-        if size < 1:
+        if size < 0:
my-lab the_last_numbers_count: all numbers count
-        return sum(self.numbers[-self.size :])
+        return sum(self.numbers)
my-lab the_last_numbers_count: the first numbers count
-        return sum(self.numbers[-self.size :])
+        return sum(self.numbers[: self.size])
my-lab the_last_numbers_count: one number fewer
-        return sum(self.numbers[-self.size :])
+        return sum(self.numbers[1 - self.size :])
"""
'''
CONTRACT = """\
demands:
  Raises ValueError unless size >= 1.: [any size, zero is a size]
  Add a number and return the sum of the last `size` numbers.:
  - all numbers count
  - the first numbers count
  - one number fewer
explains:
- The seam is a window of latencies
- A window.
- Start empty.
overlaps: {}
"""
META = """\
track: serving
order: 99
title: The last numbers
goal: Write a window over the last numbers with their sum.
topics: [operations]
unlocks: [operations.retry_load]
exercise:
  minutes: 10
  objects: [MyLab]
  hints:
    - "Which numbers count?"
    - "Keep them in a list."
    - "sum(numbers[-size:])"
probes:
  - {q: "Size 2, numbers 1, 2, 3. What is the last sum?", answer: 5}
  - {q: "What does one call cost with n numbers?", answer: "O(size)", options: ["O(1)", "O(size)", "O(n)"]}
"""
FOLLOW_UPS = "# The last numbers: what an interviewer asks next\n\n" + "".join(
    f"{number}. **Question {number}?** Because of {number}.\n" for number in range(1, 6)
)
FILLED_LAB = {
    "meta.yaml": META,
    "solution.py": SOLUTION,
    "checks.py": CHECKS,
    "mutants.py": MUTANTS,
    "contract.yaml": CONTRACT,
    "follow_ups.md": FOLLOW_UPS,
}
"""File -> text."""
