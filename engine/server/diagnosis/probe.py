"""A few small requests of our own, which show what a client sees and /metrics cannot.

ids, text    the same number of tokens as token ids and as text: does tokenising take time?
long         more tokens: is a time-out too short, and how long are the pauses between two chunks?
chat         a greeting: does it end by itself?
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any
from uuid import uuid4

import httpx

from engine.server.answers import EventStream
from engine.server.diagnosis.evidence import PROBE_ID, Answer

REPEATS = 3
NUM_TOKENS = 12
CHAT_TOKENS = 160
LONG_TOKENS = 100
"""Enough for a time-out that is too short, and for a median of pauses."""
WORDS = "the quick brown fox jumps over the lazy dog and runs home "
NUM_CHARACTERS = 400
TIMEOUT_S = 5.0
MOST_ERRORS = 2
"""After so many the rest would fail, too, and would take the time-out each."""
GREETINGS = ("Hello", "Thank you!")
"""Every chat model answers them in a few words."""


def probe(base: str, api_key: str, models: Sequence[str] = ()) -> tuple[Answer, ...]:
    """Send the requests one after another. Failures are answers with an error."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    answers: list[Answer] = []
    with httpx.Client(base_url=base, headers=headers, timeout=TIMEOUT_S) as client:
        model = models[0] if models else _first_model(client)
        for kind, body in _bodies(client, model):
            answers.append(_send(client, kind, body))
            if sum(bool(answer.error) for answer in answers) >= MOST_ERRORS:
                break
    return tuple(answers)


def _bodies(client: httpx.Client, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the requests: kind, and body."""
    common: dict[str, Any] = {"model": model, "temperature": 0, "stream": True}
    short = common | {"max_tokens": NUM_TOKENS, "ignore_eos": True}
    text = (WORDS * 10)[:NUM_CHARACTERS]
    ids = _ids(client, model, text)
    for _ in range(REPEATS):
        if ids:
            yield "ids", short | {"prompt": ids, "cache_salt": uuid4().hex}
        yield "text", short | {"prompt": text, "cache_salt": uuid4().hex}
    yield "long", short | {"prompt": text, "max_tokens": LONG_TOKENS, "cache_salt": uuid4().hex}
    for greeting in GREETINGS:
        yield (
            "chat",
            common | {"messages": [{"role": "user", "content": greeting}], "max_tokens": CHAT_TOKENS},
        )


def _first_model(client: httpx.Client) -> str:
    try:
        return str(client.get("/v1/models").json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
        return ""


def _ids(client: httpx.Client, model: str, text: str) -> list[int]:
    try:
        answer = client.post("/tokenize", json={"model": model, "prompt": text})
        return [int(token) for token in answer.json()["tokens"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []


def _send(client: httpx.Client, kind: str, body: dict[str, Any]) -> Answer:
    """Stream one answer, and time its first token as its client sees it."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    start, reason, error = time.monotonic(), "", ""
    came: list[float] = []
    stream = EventStream(path)
    headers = {"X-Request-Id": f"{PROBE_ID}{uuid4().hex}"}
    try:
        with client.stream("POST", path, json=body, headers=headers) as response:
            if response.status_code != 200:
                return Answer(kind, 0.0, "", f"HTTP {response.status_code}")
            for received in response.iter_bytes():
                for event in stream.feed(received):
                    [choice, *_] = (event.content or {}).get("choices") or [{}]
                    if choice.get("text") or (choice.get("delta") or {}).get("content"):
                        came.append(time.monotonic())
                    reason = choice.get("finish_reason") or reason
                if stream.is_over:
                    break
        fault = stream.fault
        error = "" if fault is None else fault.what
    except (httpx.HTTPError, AttributeError) as failure:
        error = stream.error.what if stream.error is not None else type(failure).__name__
    ttft = came[0] - start if came else 0.0
    gaps = [after - before for before, after in pairwise(came)]
    return Answer(kind, ttft, reason, error or ("" if came else "no tokens"), median(gaps) if gaps else 0.0)
