"""Run a golden trace through two servers in turn: `prep upgrade check`, `prep upgrade record`.

    pass 1      each request alone, base then new: tokens, margins, prefix hits
    again       the requests that differ, at the base: is it deterministic?
    rounds      all requests at their arrival times; base, new, new, base, ...: TTFT, ITL, preemptions

Each pass has a cache salt of its own, so that nothing of an earlier pass is a hit, at servers that were running
before, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from uuid import uuid4

import httpx
import uvloop

from app.bench.golden import Divergence, GoldenAnswer, GoldenRequest, drift, first_divergence
from app.bench.timing import Tell, partial_results
from app.bench.upgrade_sides import RunningSide, Target, start_side
from app.bench.upgrade_verdict import Check, Limits, SideFigures, Verdict, checks_of, overall
from engine.config import ConfigError
from engine.server.load_client import Due, Load, Objective, Sent
from engine.server.scrape import Scrape, ScrapeError, fetch

TIMEOUT_S = 120.0


@dataclass
class UpgradeReport:
    """Result of a check."""

    base: str
    new: str
    num_requests: int
    rounds: int
    verdict: Verdict = "inconclusive"
    checks: list[Check] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    unstable: list[int] = field(default_factory=list)
    """Requests that the base answered differently when it was asked again."""
    interrupted: bool = False


def check(
    tell: Tell,
    base: Target | None,
    new: Target,
    model: str,
    requests: Sequence[GoldenRequest],
    *,
    recorded: Sequence[GoldenAnswer] = (),
    rounds: int,
    limits: Limits,
    key: str = "",
) -> UpgradeReport:
    """Compare two sides, or one with the recorded answers if there is no base.

    Raises ConfigError or ProcessEnded for a side that cannot be started, httpx.HTTPError for one that does not answer.
    """
    report = UpgradeReport("recorded answers" if base is None else str(base), str(new), len(requests), rounds)
    salt = uuid4().hex
    with partial_results(report), ExitStack() as stack:
        sides = []
        for target in [new] if base is None else [base, new]:
            tell(f"starting {target}")
            sides.append(start_side(stack, target, model))
        figures = [SideFigures(side.name) for side in sides]
        answers = []
        for side, figure in zip(sides, figures, strict=True):
            tell(f"{side.name}: one request after another")
            answers.append(_answers(side, requests, f"{salt}-first", key, figure))
        if base is None:
            answers.insert(0, list(recorded))
            figures.insert(0, SideFigures("recorded answers", peak_bytes=None))
        pairs = zip(answers[0], answers[1], strict=True)
        divergences = (first_divergence(number, *pair) for number, pair in enumerate(pairs))
        report.divergences = [divergence for divergence in divergences if divergence is not None]
        if base is not None:
            report.unstable = _unstable(tell, sides[0], requests, answers[0], report.divergences, salt, key)
            _time_rounds(tell, sides, figures, requests, rounds, salt, key)
        for side, figure in zip(reversed(sides), reversed(figures), strict=False):
            figure.peak_bytes = side.peak_bytes()
        report.checks = checks_of(
            figures[0],
            figures[1],
            report.divergences,
            report.unstable,
            len(requests),
            limits,
            drift(*answers),
        )
        report.verdict = overall(report.checks)
    return report


def record(
    tell: Tell, target: Target, model: str, requests: Sequence[GoldenRequest], key: str = ""
) -> list[GoldenAnswer]:
    """Return the answers of a server to the requests, one after another. Raises as `check`."""
    with ExitStack() as stack:
        tell(f"starting {target}")
        side, figure = start_side(stack, target, model), SideFigures(str(target))
        tell(f"{side.name}: one request after another")
        answers = _answers(side, requests, uuid4().hex, key, figure)
        if figure.failed:
            raise ConfigError(
                f"{side.name} answered {figure.failed} of {len(requests)} requests with an error"
            )
        return answers


def _answers(
    side: RunningSide, requests: Sequence[GoldenRequest], salt: str, key: str, figure: SideFigures
) -> list[GoldenAnswer]:
    """Send each request alone; count failures and prefix hits."""
    before = _scrape(side, key)
    answers = []
    for request in requests:
        [sent] = _run(side, [Due(0.0, request.prompt, request.output_len)], salt, key, keeps_choices=True)
        figure.failed += bool(sent.error)
        answers.append(_answer(sent))
    if before is not None and (after := _scrape(side, key)) is not None:
        figure.hit_rate = _share(before, after)
    return answers


def _unstable(
    tell: Tell,
    base: RunningSide,
    requests: Sequence[GoldenRequest],
    answers: Sequence[GoldenAnswer],
    divergences: Sequence[Divergence],
    salt: str,
    key: str,
) -> list[int]:
    """Ask the base again for what differs; return the requests that it answers differently from itself."""
    numbers = [divergence.request for divergence in divergences]
    if not numbers:
        return []
    tell(f"{base.name}: again what differs")
    again = _answers(
        base, [requests[number] for number in numbers], f"{salt}-again", key, SideFigures(base.name)
    )
    return [
        number
        for number, answer in zip(numbers, again, strict=True)
        if answer.tokens != answers[number].tokens
    ]


def _time_rounds(
    tell: Tell,
    sides: Sequence[RunningSide],
    figures: Sequence[SideFigures],
    requests: Sequence[GoldenRequest],
    rounds: int,
    salt: str,
    key: str,
) -> None:
    """Run all rounds, the order of the sides reversed in every other one. The first round of each is not counted."""
    before = [_scrape(side, key) for side in sides]
    due = [Due(request.at, request.prompt, request.output_len) for request in requests]
    for number in range(rounds + 1):
        pairs = list(zip(sides, figures, strict=True))
        for side, figure in pairs if number % 2 else reversed(pairs):
            tell(f"round {number} of {rounds}: {side.name}")
            sent = _run(side, due, f"{salt}-{number}", key)
            figure.failed += sum(bool(request.error) for request in sent)
            whole = [request for request in sent if not request.error]
            gaps = [gap for request in whole for gap in request.gaps]
            if number and gaps:
                figure.ttft.append(median(request.ttft for request in whole))
                figure.itl.append(median(gaps))
    for side, figure, first in zip(sides, figures, before, strict=True):
        if first is not None and (last := _scrape(side, key)) is not None:
            name = "num_preemptions_total"
            figure.preemptions = last.values.get(name, 0.0) - first.values.get(name, 0.0)


def _run(
    side: RunningSide, due: Sequence[Due], salt: str, key: str, *, keeps_choices: bool = False
) -> list[Sent]:
    """Send requests and return what came back. Raises httpx.HTTPError if there is no server."""
    body: dict[str, Any] = {"cache_salt": salt}
    if keeps_choices:
        body |= {"logprobs": 2, "return_token_ids": True, "return_tokens_as_token_ids": True}
    load = Load(side.url, key, None, Objective(), TIMEOUT_S, body=body, keeps_choices=keeps_choices)
    try:
        uvloop.run(load.run(due))
    except (ValueError, LookupError, TypeError, ExceptionGroup) as error:
        what = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        raise ConfigError(f"{side.url} does not answer as OpenAI's API does: {what!r}"[:300]) from None
    return load.sent


def _answer(sent: Sent) -> GoldenAnswer:
    tokens: list[int] = []
    margins: list[float] = []
    logprobs: list[float] = []
    for choice in sent.choices:
        tokens += choice.get("token_ids") or []
        reported = choice.get("logprobs") or {}
        logprobs += [round(value, 6) for value in reported.get("token_logprobs") or [] if value is not None]
        for top in reported.get("top_logprobs") or []:
            best = sorted((top or {}).values(), reverse=True)
            margins.append(round(best[0] - best[1], 6) if len(best) > 1 else 0.0)
    whole = len(margins) == len(logprobs) == len(tokens)
    return GoldenAnswer(tokens, margins, logprobs) if whole else GoldenAnswer(tokens)


def _scrape(side: RunningSide, key: str) -> Scrape | None:
    try:
        return fetch(side.url, key)
    except (ScrapeError, httpx.HTTPError):
        return None


def _share(before: Scrape, after: Scrape) -> float | None:
    names = ("prefix_cache_hits_total", "prefix_cache_queries_total")
    if not set(names) <= after.values.keys():
        return None
    hits, queries = (after.values[name] - before.values.get(name, 0.0) for name in names)
    return hits / queries if queries else 0.0  # without a prefix cache, a server counts no queries
