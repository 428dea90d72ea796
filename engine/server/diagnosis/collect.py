"""Collect evidence from a running server: looks over a window, and if asked for, its log, a probe and its gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from engine.server.diagnosis.evidence import Answer, Evidence, Gateway, Look, Replica, log_lines
from engine.server.diagnosis.probe import probe
from engine.server.scrape import ScrapeError, fetch

EVERY_S = 0.5
MOST_LOOKS = 240
TAIL_BYTES = 1 << 20
"""End of a request log that is read: its last thousands of lines."""


@dataclass(frozen=True)
class Sources:
    """Sources of the evidence. base: as `scrape.base_of` returns it."""

    base: str
    api_key: str = ""
    window_s: float = 10.0
    log: Path | None = None
    probe: bool = False
    gateway: str = ""
    gateway_key: str = ""


def collect(sources: Sources, tell: Callable[[float], None] | None = None) -> Evidence:
    """Look at the server until the window ends. `tell` is called with the seconds so far.

    Raises:
        ScrapeError: the server or the gateway cannot be looked at.
        OSError: the log cannot be read.
    """
    if sources.log is not None:
        _tail(sources.log)  # before the window: a wrong path costs no time
    looks = [look(sources.base, sources.api_key)]
    before = _GatewayLook.of(sources) if sources.gateway else None
    start, every = time.monotonic(), max(EVERY_S, sources.window_s / MOST_LOOKS)
    with ThreadPoolExecutor(1) as beside:
        probing = beside.submit(_probe, sources, looks[0].scrape.models) if sources.probe else None
        while (spent := time.monotonic() - start) < sources.window_s:
            if tell is not None:
                tell(spent)
            time.sleep(min(every, sources.window_s - spent))
            looks.append(look(sources.base, sources.api_key))
        answers = None if probing is None else probing.result()
    gateway = None if before is None else before.until(_GatewayLook.of(sources))
    log = None if sources.log is None else log_lines(_tail(sources.log))
    return Evidence(tuple(looks), time.time(), log, answers, gateway)


def _probe(sources: Sources, models: tuple[str, ...]) -> tuple[Answer, ...]:
    logged = log_lines(_tail(sources.log)) if sources.log is not None else ()
    texts = [line["prompt_text"] for line in logged if "prompt_text" in line]
    return probe(sources.base, sources.api_key, texts, models)


def look(base: str, api_key: str) -> Look:
    """Look once. Raises ScrapeError."""
    start = time.monotonic()
    answer_s = clock_s = None
    try:
        response = httpx.get(f"{base}/health", timeout=10)
        answer_s = time.monotonic() - start
        date = parsedate_to_datetime(response.headers["Date"]).timestamp()
        clock_s = date + 0.5 - time.time()  # the header is cut to whole seconds
    except httpx.TimeoutException:
        answer_s = time.monotonic() - start
    except (httpx.HTTPError, KeyError, ValueError):
        pass  # a server may lack the path or the header; one that is away fails at /metrics
    return Look(fetch(base, api_key), answer_s, clock_s)


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
            addresses = {str(each["name"]): str(each["url"]) for each in state["backends"]}
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

        old = {each["name"]: each for each in self.state["backends"]}
        none = {"requests": 0, "failed": 0}
        replicas = tuple(
            Replica(
                name=each["name"],
                version=str(each.get("version") or ""),
                num_requests=each["requests"] - old.get(each["name"], none)["requests"],
                num_failed=each["failed"] - old.get(each["name"], none)["failed"],
                looks=tuple(of.replicas[each["name"]] for of in (self, last) if each["name"] in of.replicas),
            )
            for each in last.state["backends"]
        )
        return Gateway(
            policy=str(last.state.get("policy", "")),
            replicas=replicas,
            tenants={
                str(each["name"]): more("gateway_tokens_total", str(each["name"]))
                for each in last.state.get("tenants", [])
            },
            num_responses=more("gateway_responses_total"),
            num_attempts=more("gateway_attempts_total"),
            num_retries=more("gateway_retries_total"),
            canary=last.state.get("canary"),
        )
