"""Golden traces: seeded requests with arrival times, and the tokens that a server gave for them.

    {"prep_golden": 1, "seed": 0, "recorded_with": "..."}
    {"at": 0.0, "prompt": [411, 87, ...], "output_len": 24, "tokens": [...], "margins": [...], "logprobs": [...]}

Groups of requests share a prefix, so that a broken prefix cache shows itself. A margin is the difference between the
logprobs of the two most likely tokens at a position: two servers may differ where it is almost zero, by rounding.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from engine.config import ConfigError
from engine.server.load_client import LOWEST_ID
from prep_common.text_file import read_text

FORMAT = 1
PREFIX_LEN = 96
PER_PREFIX = 4
"""Requests that share a prefix."""


@dataclass(frozen=True)
class GoldenAnswer:
    """Greedy tokens of one request, their logprobs and margins; the two are empty if the server gave none."""

    tokens: list[int]
    margins: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class GoldenRequest:
    at: float
    """Seconds after the start."""
    prompt: list[int]
    output_len: int


@dataclass(frozen=True)
class Divergence:
    """First position at which two answers to a request differ."""

    request: int
    position: int
    base: int | None
    """Its token; None: the answer ended."""
    new: int | None
    margin: float | None
    """Margin of the base's answer at this position; None if unknown."""

    def is_near_tie(self, limit: float) -> bool:
        """Whether rounding may explain it: the base's two most likely tokens were this close, in nats."""
        return self.margin is not None and self.margin <= limit


def draw_golden(num: int, seed: int, vocabulary: int, rate: float) -> list[GoldenRequest]:
    """Return a workload, the same for the same arguments. rate: requests per second, as a Poisson process."""
    rng = Random(f"golden/{seed}")

    def ids(count: int) -> list[int]:
        return [rng.randrange(LOWEST_ID, vocabulary) for _ in range(count)]

    prefixes = [ids(PREFIX_LEN) for _ in range(-(-num // PER_PREFIX))]
    requests, at = [], 0.0
    for number in range(num):
        prompt = prefixes[number % len(prefixes)] + ids(rng.randint(8, 48))
        requests.append(GoldenRequest(round(at, 6), prompt, rng.randint(16, 48)))
        at += rng.expovariate(rate)
    return requests


def first_divergence(request: int, base: GoldenAnswer, new: GoldenAnswer) -> Divergence | None:
    """Return the first difference of two answers; None if they are equal."""
    if base.tokens == new.tokens:
        return None
    pairs = enumerate(zip(base.tokens, new.tokens, strict=False))
    shorter = min(len(base.tokens), len(new.tokens))
    at = next((position for position, (one, other) in pairs if one != other), shorter)

    def get(values: Sequence[Any]) -> Any:
        return values[at] if at < len(values) else None

    return Divergence(request, at, get(base.tokens), get(new.tokens), get(base.margins))


def drift(base: Sequence[GoldenAnswer], new: Sequence[GoldenAnswer]) -> float | None:
    """Return the mean absolute difference of the logprobs of equal tokens, in nats; None without logprobs.

    Answers count up to their first difference: after it, the two sides have different contexts.
    """
    differences = []
    for one, two in zip(base, new, strict=True):
        same = first_divergence(0, one, two)
        count = len(one.tokens) if same is None else same.position
        if one.logprobs and two.logprobs:
            differences += [abs(one.logprobs[at] - two.logprobs[at]) for at in range(count)]
    return sum(differences) / len(differences) if differences else None


def write_golden(
    path: Path, requests: Sequence[GoldenRequest], answers: Sequence[GoldenAnswer], header: dict[str, Any]
) -> None:
    """Write a golden trace."""
    lines = [{"prep_golden": FORMAT, **header}]
    lines += [asdict(request) | asdict(answer) for request, answer in zip(requests, answers, strict=True)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_golden(path: Path) -> tuple[list[GoldenRequest], list[GoldenAnswer]]:
    """Read a golden trace. Raises UnreadableFile, and ConfigError with file and line for anything else."""
    lines = read_text(path).splitlines()
    requests, answers = [], []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if number == 1:
                if value["prep_golden"] != FORMAT:
                    raise ConfigError(
                        f"{path} has format {value['prep_golden']!r}; this version reads {FORMAT}: record again"
                    )
                continue
            requests.append(_request(value))
            answers.append(_answer(value))
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{path}:{number}: not a golden trace of `prep upgrade record` ({what})"
            ) from None
    if not requests:
        raise ConfigError(f"{path} has no requests; write one with `prep upgrade record`")
    return requests, answers


def _answer(value: dict[str, Any]) -> GoldenAnswer:
    margins, logprobs = ([float(number) for number in value[name]] for name in ("margins", "logprobs"))
    answer = GoldenAnswer([int(id) for id in value["tokens"]], margins, logprobs)
    if {len(margins), len(logprobs)} - {0, len(answer.tokens)}:
        raise ValueError("margins and logprobs have one number for each token, or none")
    return answer


def _request(value: dict[str, Any]) -> GoldenRequest:
    at, prompt, output_len = float(value["at"]), [int(id) for id in value["prompt"]], int(value["output_len"])
    if not (0 <= at < 86400 and prompt and output_len >= 1):
        raise ValueError("a request needs at >= 0, a prompt and output_len >= 1")
    return GoldenRequest(at, prompt, output_len)
