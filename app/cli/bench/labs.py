"""`prep bench labs`: seconds from a save to the verdict of `prep lab watch`."""

from __future__ import annotations

import time
from statistics import median
from typing import Annotated, NamedTuple

import psutil

from app.cli import terminal
from app.cli.options import JsonOption, option

ROUNDS = 2


class Wait(NamedTuple):
    lab: str
    track: str
    seconds: float
    cpu_seconds: float


def labs(
    only: Annotated[str, option("Names of labs, comma-separated; all without.", metavar="LABS")] = "",
    json: JsonOption = False,
) -> None:
    """Measure how long each lab's checks of our solution take: after a save, that is the wait for the verdict.

    The watch looks at the file every tenth of a second. CPU seconds are those of the checker and of the learner's
    process: on an idle machine, the wait is hardly longer. The second of two rounds counts, as in a running watch.

    \b
    Examples:
      prep bench labs
      prep bench labs --only block-manager,fair-share
    """
    from lessons.course.lesson_files import find_lab, solution
    from lessons.course.lesson_files import labs as all_labs

    chosen = [find_lab(name) for name in only.split(",")] if only else list(all_labs())
    checks: list[Wait] = []
    with terminal.progress(len(chosen), "labs") as advance:
        for lab in chosen:
            advance(lab.number)
            seconds, cpu = _measure(lab.number, solution(lab.number))
            checks.append(Wait(lab.number, lab.track, seconds, cpu))
    if json:
        return terminal.print_json([check._asdict() for check in checks])
    rows = [(check.lab, check.track, f"{check.seconds:.2f}", f"{check.cpu_seconds:.2f}") for check in checks]
    terminal.show(
        "Seconds of a check",
        terminal.table("lab", "track", "seconds", "CPU seconds", left=("track",), rows=rows),
    )
    for name, is_kernel in (("kernels", True), ("other tracks", False)):
        some = [check for check in checks if (check.track == "kernels") is is_kernel]
        if some:
            wait, cpu = median(check.seconds for check in some), median(check.cpu_seconds for check in some)
            terminal.say(f"median, {name}: {wait:.2f} s, of which {cpu:.2f} s of CPU time")


def _measure(lab: str, source: str) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of the last of some checks."""
    from lessons.course.checking import run_checks

    for _ in range(ROUNDS):
        began, cpu = time.perf_counter(), _cpu_seconds()
        run_checks(lab, source)
        seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    return seconds, cpu


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of all that it has started."""
    here = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (here, *here.children()))
