"""The looks of a drill as figures over the time of a run: today's beside yesterday's, in the same columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from engine.server.scrape import Activity
from interview.drills.running import EVERY_S, Record

NAN = float("nan")
REQUEST_S = 0.5
"""Width of a column for figures of single requests."""
STEP_S = 0.1
Points = Sequence[tuple[float, float | None]]
"""Seconds since the start, and a figure."""


class Pair(NamedTuple):
    """A chart: one figure of both runs, a value per column; nan without one."""

    title: str
    unit: str
    today: list[float]
    yesterday: list[float]
    limit: float | None = None


class Charts(NamedTuple):
    """Charts with the same columns of `width` seconds."""

    width: float
    pairs: list[Pair]

    @property
    def num_columns(self) -> int:
        return len(self.pairs[0].today) if self.pairs else 0


class _Series(NamedTuple):
    title: str
    unit: str
    of: Callable[[Any], float | None]
    limit: float | None = None


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _ms(value: float | None) -> float | None:
    return None if value is None else 1000 * value


_LEVELS = [
    _Series("Running", "requests", lambda a: a.running),
    _Series("Waiting", "requests", lambda a: a.waiting),
    _Series("KV cache", "% used", lambda a: 100 * a.kv_cache_usage, 100.0),
    _Series("Preempted", "per second", lambda a: a.preemptions_per_s),
]
_HITS = _Series("Prefix hits", "% of prompt tokens", lambda a: _percent(a.prefix_hit_rate), 100.0)
_OUTPUT = _Series("Output", "tokens/s", lambda a: a.output_tokens_per_s)
SAMPLES: dict[str, list[_Series]] = {
    "latency": [
        _Series("TTFT, median", "ms", lambda a: _ms(a.ttft_p50)),
        _Series("TTFT, p99", "ms", lambda a: _ms(a.ttft_p99)),
        _Series("ITL, median", "ms", lambda a: _ms(a.itl_p50)),
        _Series("ITL, p99", "ms", lambda a: _ms(a.itl_p99)),
    ],
    "queue": _LEVELS,
    "cache": [_HITS, _Series("Prompts", "tokens/s", lambda a: a.prompt_tokens_per_s)],
    "ends": [
        _Series("Ended", "requests/s", lambda a: a.requests_per_s),
        _Series("Rejected", "requests/s", lambda a: a.rejections_per_s),
        _Series("Failed", "requests/s", lambda a: a.errors_per_s),
        _OUTPUT,
    ],
    "speculation": [
        _Series("Accepted", "% of drafted tokens", lambda a: _percent(a.draft_acceptance), 100.0)
    ],
    "top": [*_LEVELS, _OUTPUT, _HITS],
}
"""Look -> figures of each scrape."""
REQUESTS = [
    _Series("Queue", "ms", lambda e: e.get("QueueWaitMs")),
    _Series("TTFT", "ms", lambda e: e.get("TTFTMs")),
    _Series("Whole answer", "ms", lambda e: e.get("E2EMs")),
    _Series("Prefix hit", "tokens", lambda e: e["prefix_len"]),
    _Series("Answer", "tokens", lambda e: e["output"]),
    _Series("Preempted", "times", lambda e: e["num_preemptions"]),
]
CLIENTS = [
    _Series("TTFT", "ms", lambda sent: 1000 * sent.ttft if sent.first else None),
    _Series("Longest pause", "ms", lambda sent: 1000 * max(sent.gaps) if sent.gaps else None),
    _Series("Whole answer", "ms", lambda sent: 1000 * sent.e2e if sent.last and not sent.error else None),
    _Series("Attempt", "number", lambda sent: sent.attempt),
]


def charts_of(look: str, today: Record, yesterday: Record) -> Charts:
    """Return the charts of a look, none for one that has only a table or text. Figures without a value are left out."""
    if look in SAMPLES:
        return _charts(SAMPLES[look], EVERY_S, [_samples(record) for record in (today, yesterday)], _last)
    if look == "requests":
        return _charts(REQUESTS, REQUEST_S, [_logged(record) for record in (today, yesterday)], max)
    if look == "clients":
        return _charts(CLIENTS, REQUEST_S, [_sent(record) for record in (today, yesterday)], max)
    if look == "steps":
        return _charts(_STEPS, STEP_S, [_steps(record) for record in (today, yesterday)], max)
    return Charts(EVERY_S, [])


def request_rows(record: Record) -> list[dict[str, Any]]:
    """Return the request log in the order of arrival: one row per request."""
    entries = [(number, entry) for number, server in enumerate(record.log) for entry in server]
    entries.sort(key=lambda pair: pair[1]["arrival"])
    start = entries[0][1]["arrival"] if entries else 0.0
    rows = []
    for server, entry in entries:
        row = {"at, s": round(entry["arrival"] - start, 2)}
        if len(record.log) > 1:
            row["server"] = server
        row |= {
            "prompt": entry["prompt"],
            "prefix hit": entry["prefix_len"],
            "output": entry["output"],
            "ends": entry["finish_reason"],
            "queue, ms": _whole(entry.get("QueueWaitMs")),
            "TTFT, ms": _whole(entry.get("TTFTMs")),
            "whole, ms": _whole(entry["E2EMs"]),
            "preempted": entry["num_preemptions"],
        }
        rows.append(row)
    return rows


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else round(value)


def _charts(
    series: list[_Series],
    width: float,
    runs: list[list[tuple[float, Any]]],
    join: Callable[[Iterable[float]], float],
) -> Charts:
    """Put the items of both runs, (seconds, item), into the same columns."""
    last = max((at for run in runs for at, _ in run), default=0.0)
    num_columns = math.floor(last / width + 1e-6) + 1
    pairs = []
    for curve in series:
        lines = [
            _columns([(at, curve.of(item)) for at, item in run], width, num_columns, join) for run in runs
        ]
        if any(value == value for line in lines for value in line):
            pairs.append(Pair(curve.title, curve.unit, lines[0], lines[1], curve.limit))
    return Charts(width, pairs)


def _columns(
    points: Points, width: float, num_columns: int, join: Callable[[Iterable[float]], float]
) -> list[float]:
    columns: list[list[float]] = [[] for _ in range(num_columns)]
    for at, value in points:
        if value is not None and math.isfinite(value):
            columns[min(num_columns - 1, max(0, math.floor(at / width + 1e-6)))].append(float(value))
    return [join(values) if values else NAN for values in columns]


def _last(values: Iterable[float]) -> float:
    return list(values)[-1]


def _samples(record: Record) -> list[tuple[float, Activity]]:
    """Return the scrapes at equal distances: a scrape that came late would leave a gap in the charts."""
    end, scrapes = 0.0, []
    for sample in record.samples:
        scrapes.append((end, sample))
        end += sample.seconds
    slots = range(math.ceil(end / EVERY_S))
    at, spread = 0, []
    for slot in slots:
        while at + 1 < len(scrapes) and scrapes[at + 1][0] <= (slot + 0.5) * EVERY_S:
            at += 1
        spread.append((slot * EVERY_S, scrapes[at][1]))
    return spread


def _logged(record: Record) -> list[tuple[float, Any]]:
    entries = [entry for server in record.log for entry in server]
    start = min((entry["arrival"] for entry in entries), default=0.0)
    return [(entry["arrival"] - start, entry) for entry in entries]


def _sent(record: Record) -> list[tuple[float, Any]]:
    return [(request.due, request) for request in record.sent]


_STEPS = [
    _Series("Longest step", "ms", lambda pair: pair[0]),
    _Series("Prompt tokens", "most in a step", lambda pair: pair[1].get("num_prefill_tokens", 0)),
    _Series("Answer tokens", "most in a step", lambda pair: pair[1].get("num_decode_tokens", 0)),
    _Series("KV cache", "% used", lambda pair: 100 * pair[1].get("kv_cache_usage", 0.0), 100.0),
]


def _steps(record: Record) -> list[tuple[float, Any]]:
    """Return the steps of all servers, each with its duration in milliseconds."""
    start = min((server[0]["when"] for server in record.steps if server), default=0.0)
    return [
        (before["when"] - start, (1000 * (step["when"] - before["when"]), step))
        for server in record.steps
        for before, step in zip(server, server[1:], strict=False)
        if before.get("num_running")
    ]
