"""Compute the figures about tenants, ranks and replicas of a run."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any
from zlib import crc32

from interview.drills.figures import Figures
from interview.drills.running import Record

BLOCK = 16
"""Tokens of a block, which the request log names a prefix by."""


def platform_figures(record: Record) -> Figures:
    """Return them; those that a run cannot have are 0."""
    return {
        "tenant_share": _tenant_share(record),
        "foreign_hits": float(foreign_hits(record)),
        "rank_gap_ms": _rank_gap(record.last_lines),
        "replica_step_ratio": _step_ratio(record.steps),
    }


def _tenant_share(record: Record) -> float:
    counts = Counter(due.name for due in record.due)
    return max(counts.values()) / sum(counts.values()) if counts else 0.0


def foreign_hits(record: Record) -> int:
    """Return the number of requests that hit a prefix which their own tenant had never sent."""
    senders: dict[int, list[str]] = defaultdict(list)
    for due in record.due:
        senders[crc32(repr(list(due.prompt[:BLOCK])).encode()) & 0x7FFF].append(due.name)
    entries: dict[int, list[int]] = defaultdict(list)
    for entry in sorted((line for server in record.log for line in server), key=lambda line: line["arrival"]):
        entries[entry["prefix"]].append(entry["prefix_len"])
    num_hits = 0
    for prefix, names in senders.items():
        if len(set(names)) < 2 or len(entries[prefix]) != len(names):
            continue
        hits = zip(names, entries[prefix], strict=True)
        num_hits += sum(hit > 0 and name not in names[:number] for number, (name, hit) in enumerate(hits))
    return num_hits


def _rank_gap(lines: str) -> float:
    """Return the difference between the slowest and the fastest rank, in milliseconds of their own work."""
    times: dict[str, list[float]] = defaultdict(list)
    for rank, ms in re.findall(r"rank (\d+): ([\d.]+) ms of a step", lines):
        times[rank].append(float(ms))
    middles = [median(of_rank) for of_rank in times.values()]
    return max(middles) - min(middles) if len(middles) > 1 else 0.0


def _step_ratio(steps: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Return the median step of the slowest server over that of the fastest."""
    middles = []
    for server in steps:
        times = [
            step["when"] - before["when"]
            for before, step in zip(server, server[1:], strict=False)
            if before.get("num_running") and step.get("num_scheduled_tokens")
        ]
        if times:
            middles.append(median(times))
    return max(middles) / min(middles) if len(middles) > 1 else 1.0
