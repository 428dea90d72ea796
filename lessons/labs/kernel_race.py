"""Races of kernels in C++: yours, ours and the engine's on one thread, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from lessons.course.lesson_files import find_lab
from lessons.course.native import median_seconds, seconds_per_call
from lessons.course.native_guest import compiled_guest
from lessons.labs.racing import CALL_SECONDS, Race
from prep_common.sandbox import Limits

ROUNDS = 3
LIMITS = Limits(seconds=60.0, call_seconds=CALL_SECONDS, load_seconds=5.0, megabytes=1_024)


@dataclass(frozen=True)
class Track:
    """A workload."""

    name: str
    args: list[Any]
    """Arguments of the C++ function."""
    engine: Callable[[], object]
    """The same work with the engine's kernel."""
    num_bytes: int
    """The least that must be read and written."""
    function: str = ""
    """Function to call, in a lab that has several."""
    then: tuple[str, list[Any]] | None = None
    """A second function that the same work takes, and its arguments."""


def race_kernels(lab: str, function: str, yours: str, ours: str, tracks: Iterable[Track]) -> Race:
    """Measure each workload in turn, three rounds; the ratio is the worst of yours over ours."""
    rows, ratios = [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = find_lab(lab)
    try:
        with (
            compiled_guest(found, yours, LIMITS) as your_guest,
            compiled_guest(found, ours, LIMITS) as our_guest,
        ):
            for track in tracks:
                times: dict[str, list[float]] = {"yours": [], "ours": [], "prep's kernel": []}
                calls = [(track.function or function, track.args), *([track.then] if track.then else [])]
                for _ in range(ROUNDS):
                    times["yours"].append(sum(seconds_per_call(your_guest, *call) for call in calls))
                    times["ours"].append(sum(seconds_per_call(our_guest, *call) for call in calls))
                    times["prep's kernel"].append(_engine_seconds(track.engine))
                best = {whose: median(each) for whose, each in times.items()}
                rows += [
                    (track.name, whose, f"{1e6 * seconds:,.1f} us", f"{track.num_bytes / seconds / 1e9:.1f}")
                    for whose, seconds in best.items()
                ]
                ratios.append(best["yours"] / best["ours"])
    finally:
        torch.set_num_threads(threads)
    says = f"time of yours over ours on one thread, the worst of {len(ratios)} workloads; less is better"
    return Race(("workload", "kernel", "time", "GB/s"), rows, max(ratios), says)


def _engine_seconds(call: Callable[[], object]) -> float:
    def repeat(times: int) -> None:
        for _ in range(times):
            call()

    return median_seconds(repeat)
