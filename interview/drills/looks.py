"""Render what a look shows, as lines of at most 78 characters. Figures stand beside those of the healthy twin."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from interview.drills.applies import NOTHING
from interview.drills.figures import FIGURES, Figures, shown
from prep_common.text import counted

if TYPE_CHECKING:
    from interview.drills.running import Record

WIDTH = 78
ROWS = 16
BARS = "▁▂▃▄▅▆▇█"


class Row(NamedTuple):
    """A figure of a look, with its unit, beside that of the healthy twin."""

    figure: str
    now: str
    before: str
    says: str


def look(name: str, record: Record, now: Figures, before: Figures, among: Collection[str]) -> list[str]:
    """Return the lines of a look. among: figures that can exist. Raises KeyError for an unknown one."""
    told = rows(name, now, before, among)
    return in_lines(details(name, record) if told or name not in NOTHING else [NOTHING[name]], told)


def in_lines(details: list[str], told: list[Row], width: int = WIDTH) -> list[str]:
    """Return details and figures as lines of at most `width` characters."""
    lines = [part for line in details for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]
    if told:
        names, now, before = (max(map(len, column)) for column in list(zip(*told, strict=True))[:3])
        now, before = max(now, len("now")), max(before, len("yesterday"))
        lines.append(f"{'figure':{names}}  {'now':>{now}}  {'yesterday':>{before}}")
        for entry in told:
            row = f"{entry.figure:{names}}  {entry.now:>{now}}  {entry.before:>{before}}"
            says = "" if entry.says == entry.figure else f"  {entry.says}"
            lines += [row + says] if len(row + says) <= width else [row, says]
    return lines


def details(name: str, record: Record) -> list[str]:
    """Return the lines of a look above its figures. Those of commands and logs may be long."""
    return list(_DETAILS.get(name, _nothing)(record))


def rows(name: str, now: Figures, before: Figures, among: Collection[str] = FIGURES.keys()) -> list[Row]:
    """Return the figures of a look. among: figures that can exist."""
    return [
        Row(figure, shown(figure, now[figure]), shown(figure, before[figure]), FIGURES[figure].says)
        for figure in FIGURES
        if FIGURES[figure].look == name and figure in among
    ]


def figures_of(names: list[str]) -> set[str]:
    """Return the figures that these looks show."""
    return {name for name, figure in FIGURES.items() if figure.look in names}


def _nothing(record: Record) -> Iterator[str]:
    yield from ()


def _bars(values: list[float]) -> str:
    """Return a sparkline of at most WIDTH - 10 columns; each column is the largest of its values."""
    if not values:
        return ""
    size = -(-len(values) // (WIDTH - 10))
    columns = [max(values[at : at + size]) for at in range(0, len(values), size)]
    top = max(max(columns), 1e-9)
    return "".join(BARS[min(7, int(8 * value / top))] for value in columns)


def _top(record: Record) -> Iterator[str]:
    yield f"{'s':>5} {'running':>8} {'waiting':>8} {'KV cache':>9} {'preempt/s':>10} {'tokens/s':>9} {'hits':>6}"
    samples = record.samples[:: max(1, len(record.samples) // ROWS)]
    at = 0.0
    for sample in samples:
        at += sample.seconds * max(1, len(record.samples) // ROWS)
        hits = "-" if sample.prefix_hit_rate is None else f"{sample.prefix_hit_rate:.0%}"
        yield (
            f"{at:5.1f} {sample.running:8.0f} {sample.waiting:8.0f} {sample.kv_cache_usage:9.0%} "
            f"{sample.preemptions_per_s:10.1f} {sample.output_tokens_per_s:9.0f} {hits:>6}"
        )


def _steps(record: Record) -> Iterator[str]:
    for number, steps in enumerate(record.steps):
        timed = [
            (1000 * (step["when"] - before["when"]), step)
            for before, step in zip(steps, steps[1:], strict=False)
            if before.get("num_running")
        ]
        name = f"server {number}: " if len(record.steps) > 1 else ""
        yield f"{name}{counted(len(steps), 'step')}"
        yield f"ms      {_bars([ms for ms, _ in timed])}"
        yield f"prompts {_bars([step.get('num_prefill_tokens', 0) for _, step in timed])}"
        longest = sorted(timed, key=lambda pair: -pair[0])[:3]
        for ms, step in longest:
            yield (
                f"  {ms:,.0f} ms: {step.get('num_prefill_tokens', 0):,} prompt tokens, "
                f"{step.get('num_decode_tokens', 0)} decode tokens"
            )


def _requests(record: Record) -> Iterator[str]:
    head = f"{'prompt':>6} {'hit':>5} {'output':>6} {'ends':>7} {'queue ms':>9} {'TTFT ms':>9} {'E2E ms':>9}"
    yield f"{head} {'preempt':>8}"
    entries: list[dict[str, Any]] = [entry for server in record.log for entry in server]
    for entry in entries[:: max(1, -(-len(entries) // ROWS))]:
        yield (
            f"{entry['prompt']:6} {entry['prefix_len']:5} {entry['output']:6} {entry['finish_reason']:>7} "
            f"{entry.get('QueueWaitMs', float('nan')):9,.0f} {entry.get('TTFTMs', float('nan')):9,.0f} "
            f"{entry['E2EMs']:9,.0f} {entry['num_preemptions']:8}"
        )


def _clients(record: Record) -> Iterator[str]:
    errors: dict[str, int] = {}
    for request in record.sent:
        kind = request.error or ("answered" if request.last else "no answer")
        errors[kind] = errors.get(kind, 0) + 1
    yield f"{counted(len(record.sent), 'request')}: " + ", ".join(
        f"{number} {kind}" for kind, number in errors.items()
    )


def _replicas(record: Record) -> Iterator[str]:
    for number, entries in enumerate(record.log):
        hits, total = sum(entry["prefix_len"] for entry in entries), sum(entry["prompt"] for entry in entries)
        mean = sum(entry["E2EMs"] for entry in entries) / max(1, len(entries))
        yield (
            f"server {number}: {counted(len(entries), 'request')}, hits {hits / max(1, total):.0%} of "
            f"{total:,} prompt tokens, mean {mean:,.0f} ms"
        )


def _config(record: Record) -> Iterator[str]:
    yield from record.commands


def _log(record: Record) -> Iterator[str]:
    yield from record.last_lines.splitlines()


_DETAILS = {
    "top": _top,
    "steps": _steps,
    "requests": _requests,
    "clients": _clients,
    "replicas": _replicas,
    "config": _config,
    "log": _log,
}
