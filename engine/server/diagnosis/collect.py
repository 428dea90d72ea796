"""Collect evidence from a running server: looks over a window, and if asked for, its log, a probe and its gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from engine.server.diagnosis.evidence import (
    MOST_LOGGED,
    Evidence,
    Gateway,
    Look,
    Replica,
    log_lines,
    rank_times,
)
from engine.server.diagnosis.probe import probe
from engine.server.scrape import ScrapeError, fetch, fetch_all

EVERY_S = 0.5
MOST_LOOKS = 240
TAIL_BYTES = 1 << 20
"""End of a request log that is read: its last thousands of lines."""


@dataclass(frozen=True)
class Sources:
    """Sources of the evidence. bases: servers of one model, as `scrape.base_of` returns them; they are taken as one."""

    bases: tuple[str, ...]
    api_key: str = ""
    window_s: float = 10.0
    logs: tuple[Path, ...] = ()
    """Request logs of the servers."""
    server_log: Path | None = None
    """Output of a server, in which ranks tell their times."""
    probe: bool = False
    gateway: str = ""
    gateway_key: str = ""


def collect(sources: Sources, tell: Callable[[float], None] | None = None) -> Evidence:
    """Look at the server until the window ends. `tell` is called with the seconds so far.

    Raises:
        ScrapeError: the server or the gateway cannot be looked at.
        OSError: the log cannot be read.
    """
    server_logs = () if sources.server_log is None else (sources.server_log,)
    for path in (*sources.logs, *server_logs):
        _tail(path)  # before the window: a wrong path costs no time
    looks = [look(sources.bases, sources.api_key)]
    before = _GatewayLook.of(sources) if sources.gateway else None
    start, every = time.monotonic(), max(EVERY_S, sources.window_s / MOST_LOOKS)
    with ThreadPoolExecutor(1) as beside:
        models = looks[0].scrape.models
        probing = beside.submit(probe, sources.bases[0], sources.api_key, models) if sources.probe else None
        while (spent := time.monotonic() - start) < sources.window_s:
            if tell is not None:
                tell(spent)
            time.sleep(min(every, sources.window_s - spent))
            looks.append(look(sources.bases, sources.api_key))
        answers = None if probing is None else probing.result()
    gateway = None if before is None else before.until(_GatewayLook.of(sources))
    log = _logged(sources) if sources.logs else None
    ranks = rank_times(_tail(sources.server_log)) if sources.server_log is not None else None
    return Evidence(tuple(looks), time.time(), log, answers, gateway, ranks)


def _logged(sources: Sources) -> tuple[dict[str, Any], ...]:
    """Return the lines of all request logs, in order of arrival."""
    lines = [line for path in sources.logs for line in log_lines(_tail(path))]
    return tuple(sorted(lines, key=lambda line: float(line["arrival"])))[-MOST_LOGGED:]


def look(bases: Sequence[str], api_key: str) -> Look:
    """Look once: the figures of all servers together, the slowest answer, and the clock that differs most.

    Raises ScrapeError.
    """
    answers, clocks = zip(*map(_answer, bases), strict=True)
    return Look(
        fetch_all(bases, api_key),
        max((answer for answer in answers if answer is not None), default=None),
        max((clock for clock in clocks if clock is not None), key=abs, default=None),
    )


def _answer(base: str) -> tuple[float | None, float | None]:
    """Return the seconds until GET /health was answered, and the difference of the clocks, as far as they are known."""
    start = time.monotonic()
    try:
        response = httpx.get(f"{base}/health", timeout=10)
        answer_s = time.monotonic() - start
    except httpx.TimeoutException:
        return time.monotonic() - start, None
    except httpx.HTTPError:
        return None, None  # a server may lack the path; one that is away fails at /metrics
    try:
        date = parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return answer_s, None
    return answer_s, date + 0.5 - time.time()  # the header is cut to whole seconds


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        return file.read().decode(errors="replace")


@dataclass(frozen=True)
class _GatewayLook:
    """State and counters of a gateway, and a look at each of its replicas."""

    state: dict[str, Any]
    counters: dict[tuple[str, ...], float]
    replicas: dict[str, Look]

    @classmethod
    def of(cls, sources: Sources) -> _GatewayLook:
        base = sources.gateway
        headers = {"Authorization": f"Bearer {sources.gateway_key}"} if sources.gateway_key else {}
        try:
            answers = [httpx.get(f"{base}{path}", headers=headers) for path in ("/gateway/state", "/metrics")]
            for answer in answers:
                answer.raise_for_status()
            state = answers[0].json()
            counters = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families(answers[1].text)
                for sample in family.samples
            }
            addresses = {str(backend["name"]): str(backend["url"]) for backend in state["backends"]}
        except httpx.HTTPStatusError as error:
            raise ScrapeError(
                f"the gateway at {base} answers with status {error.response.status_code}",
                "give its admin key with --gateway-key",
            ) from None
        except httpx.HTTPError as error:
            raise ScrapeError(f"no gateway at {base}: {error}", "prep gateway run", is_down=True) from None
        except (ValueError, KeyError, TypeError):
            raise ScrapeError(f"{base}/gateway/state is not a gateway's", "prep gateway run") from None
        replicas = {}
        for name, url in addresses.items():
            try:
                replicas[name] = Look(fetch(url, sources.api_key))
            except ScrapeError:
                continue  # a replica that is away, or needs another key, has no figures
        return cls(state, counters, replicas)

    def until(self, last: _GatewayLook) -> Gateway:
        """Return what happened until the last look."""

        def more(prefix: str, label: str = "") -> float:
            return sum(
                value - self.counters.get(key, 0.0)
                for key, value in last.counters.items()
                if key[0] == prefix and (not label or label in key[1:])
            )

        old = {backend["name"]: backend for backend in self.state["backends"]}
        none = {"requests": 0, "failed": 0}
        replicas = tuple(
            Replica(
                name=backend["name"],
                version=str(backend.get("version") or ""),
                num_requests=backend["requests"] - old.get(backend["name"], none)["requests"],
                num_failed=backend["failed"] - old.get(backend["name"], none)["failed"],
                looks=tuple(
                    of.replicas[backend["name"]] for of in (self, last) if backend["name"] in of.replicas
                ),
            )
            for backend in last.state["backends"]
        )
        return Gateway(
            policy=str(last.state.get("policy", "")),
            replicas=replicas,
            tenants={
                str(tenant["name"]): more("gateway_tokens_total", str(tenant["name"]))
                for tenant in last.state.get("tenants", [])
            },
            num_responses=more("gateway_responses_total"),
            num_attempts=more("gateway_attempts_total"),
            num_retries=more("gateway_retries_total"),
            canary=last.state.get("canary"),
        )
