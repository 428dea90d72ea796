"""Evidence: the looks at a server over a window, and optionally its request log, a probe and a gateway.

It is plain data that a file can hold: `prep diagnose --save`, `--baseline` and the recordings of drills.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.server.scrape import Scrape

FORMAT = 2
LOGGED = (
    "arrival", "prompt", "output", "prefix", "prefix_len", "priority", "model", "finish_reason",
    "salt", "E2EMs",
)  # fmt: skip
"""Fields of the request log that a diagnosis reads."""
PROBE_ID = "prep-probe-"
"""Beginning of the probe's request ids: its requests are no traffic."""
MOST_LOGGED = 400
"""Last lines of a request log that are kept."""


class EvidenceError(Exception):
    """A file that holds no evidence, and the reason."""


@dataclass(frozen=True)
class Look:
    """A scrape, and how the server answered at that moment."""

    scrape: Scrape
    answer_s: float | None = None
    """Seconds until GET /health was answered: the delay of the process that speaks HTTP."""
    clock_s: float | None = None
    """The server's clock (the header Date) minus this machine's."""


@dataclass(frozen=True)
class Answer:
    """A request of the probe as its client saw it."""

    kind: str
    """"ids": token ids; "text": the same length as text; "long": more tokens; "chat": a greeting."""
    ttft: float
    """Seconds until the first token."""
    finish_reason: str
    error: str = ""
    gap: float = 0.0
    """Median seconds between two chunks; 0 without any."""


@dataclass(frozen=True)
class Replica:
    """A server behind the gateway: what the gateway says, and two looks at the server itself."""

    name: str
    version: str
    num_requests: float
    num_failed: float
    looks: tuple[Look, ...] = ()


@dataclass(frozen=True)
class Gateway:
    """A gateway over the window; numbers are increases."""

    policy: str
    replicas: tuple[Replica, ...]
    tenants: dict[str, float]
    """Tenant -> prompt and output tokens."""
    num_responses: float
    num_attempts: float
    num_retries: float
    canary: dict[str, Any] | None = None


@dataclass(frozen=True)
class Evidence:
    """All that a diagnosis is made of."""

    looks: tuple[Look, ...]
    ended_at: float
    """Time of day of this machine at the last look."""
    log: tuple[dict[str, Any], ...] | None = None
    """Lines of the request log, oldest first; None: not given."""
    probe: tuple[Answer, ...] | None = None
    gateway: Gateway | None = None
    ranks: dict[str, list[float]] | None = None
    """Rank -> milliseconds of its own work in a step, from the server's output; None: not given."""
    label: str = field(default="", compare=False)


def rank_times(text: str) -> dict[str, list[float]]:
    """Return the times of each rank from a server's output: "rank 1: 8.5 ms of a step", in milliseconds."""
    times: dict[str, list[float]] = {}
    for rank, ms in re.findall(r"rank (\d+): ([\d.]+) ms of a step", text):
        times.setdefault(rank, []).append(float(ms))
    return times


def log_lines(text: str) -> tuple[dict[str, Any], ...]:
    """Return the last lines of a request log, without those of the probe and anything that is no line of one."""
    entries = []
    for line in text.splitlines()[-MOST_LOGGED:]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        is_line = isinstance(entry, dict) and isinstance(entry.get("arrival"), int | float)
        if is_line and PROBE_ID not in str(entry.get("request_id")):
            entries.append({name: entry[name] for name in LOGGED if name in entry})
    return tuple(entries)


def save(evidence: Evidence, path: Path) -> None:
    """Write evidence as compressed JSON. Raises OSError."""
    content = {"format": FORMAT, **asdict(evidence)}
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def load(path: Path) -> Evidence:
    """Read what `save` wrote. Raises OSError or EvidenceError."""
    packed = path.read_bytes()
    try:
        content = json.loads(gzip.decompress(packed))
        if content.pop("format") != FORMAT:
            raise EvidenceError("it has another format")
        gateway, probe, log = (content.pop(name) for name in ("gateway", "probe", "log"))
        return Evidence(
            looks=_looks(content.pop("looks")),
            ended_at=float(content.pop("ended_at")),
            log=None if log is None else tuple(log),
            probe=None if probe is None else tuple(Answer(**answer) for answer in probe),
            gateway=None if gateway is None else _gateway(gateway),
            ranks=content.pop("ranks"),
            label=content.pop("label"),
        )
    except (EOFError, OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise EvidenceError(f"it was not written by prep diagnose --save ({error})") from None


def _looks(entries: Sequence[dict[str, Any]]) -> tuple[Look, ...]:
    looks = []
    for entry in entries:
        scrape = dict(entry["scrape"])
        scrape["buckets"] = {
            name: {float(bound): count for bound, count in bounds.items()}
            for name, bounds in scrape["buckets"].items()
        }
        scrape["models"] = tuple(scrape["models"])
        looks.append(Look(Scrape(**scrape), entry["answer_s"], entry["clock_s"]))
    return tuple(looks)


def _gateway(content: dict[str, Any]) -> Gateway:
    replicas = tuple(
        Replica(**(replica | {"looks": _looks(replica["looks"])})) for replica in content["replicas"]
    )
    return Gateway(**(content | {"replicas": replicas}))
