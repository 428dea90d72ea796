"""A process that runs checks for notebooks, so that a kernel full of learner code cannot reach them.

Reads {"exercise": id, "source": text} records, answers each with a report.
"""

from __future__ import annotations

from lessons.course.checking import run_checks
from prep_common.parent_link import JsonLink


def main() -> None:
    link = JsonLink()
    while (wanted := link.read()) is not None:
        link.write(run_checks(wanted["exercise"], wanted["source"]).to_json())


if __name__ == "__main__":
    main()
