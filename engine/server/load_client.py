"""Open-loop load on a server with OpenAI's API: requests leave at their time, whether or not answers have come.

    due ----> sent ----> first chunk ----> last chunk
    |-- late --|----------- TTFT -----------|   counted from `due`, so that a slow client or server cannot hide a queue
Each request streams a completion of token ids, of a given length (ignore_eos). Times between chunks are ITL, as in
`vllm bench serve`; a chunk may hold several tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from engine.server.answers import COMPLETIONS, EventStream, usage
from engine.server.pools import Pools
from engine.sim.report import Percentiles, percentiles
from engine.sim.workload import SimRequest

LOWEST_ID = 100
"""Token ids below are often special tokens."""
LEFT = "client left"
"""Error of a request whose client hung up after its `patience_s`."""


@dataclass(frozen=True)
class Objective:
    """The limits of a request that counts as good; None: no limit. Seconds."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def is_met(self, sent: Sent) -> bool:
        times = ((self.ttft, sent.ttft), (self.tpot, sent.tpot), (self.e2e, sent.e2e))
        return all(limit is None or value <= limit for limit, value in times)

    @property
    def is_set(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.tpot, self.e2e))


@dataclass(frozen=True, slots=True)
class Due:
    """A request to send `at` seconds after the start: token ids, and tokens to generate."""

    at: float
    prompt: list[int]
    output_len: int
    priority: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request; they replace those of the same name, such as `prompt`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    patience_s: float | None = None
    """The client hangs up after this time; None: it waits for the answer."""
    name: str = ""
    attempts: int = 1
    """A client that got no answer sends the request again, up to so many times in all."""
    backoff_s: float = 0.0
    """Pause before the second attempt; each further one is twice as long."""


@dataclass(slots=True)
class Sent:
    """One request. Times are seconds since the start of the run."""

    due: float
    num_prompt_tokens: int
    first: float = 0.0
    last: float = 0.0
    num_tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    error: str = ""
    """Reason why it failed: "HTTP 429", "ConnectError", "client left", ...; empty for a whole answer."""
    name: str = ""
    """Name of the group of requests that it belongs to."""
    attempt: int = 1
    choices: list[dict[str, Any]] = field(default_factory=list)
    """Choices of all chunks in their order, if the load keeps them."""

    @property
    def ttft(self) -> float:
        return self.first - self.due

    @property
    def e2e(self) -> float:
        return self.last - self.due

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / max(1, self.num_tokens - 1)


@dataclass(frozen=True)
class LoadReport:
    """Results of a run so far. Times in seconds; goodput is None without an objective."""

    seconds: float
    num_sent: int
    num_running: int
    num_done: int
    errors: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float | None
    good_share: float | None
    """Good requests of those that ended, failed ones included."""
    ttft: Percentiles | None
    itl: Percentiles | None
    tpot: Percentiles | None
    e2e: Percentiles | None


class Load:
    """A run of a workload against one server."""

    def __init__(
        self,
        url: str,
        key: str,
        model: str | None,
        objective: Objective,
        timeout_s: float,
        *,
        body: Mapping[str, Any] | None = None,
        keeps_choices: bool = False,
    ) -> None:
        """url: without /v1. model: None takes the server's first. body: further fields of each request."""
        self._url, self._model, self._objective = url, model, objective
        self._body, self._keeps_choices = dict(body or {}), keeps_choices
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, transport=Pools(), timeout=timeout_s)
        self._began = time.monotonic()
        self.sent: list[Sent] = []
        """Requests in the order in which they left."""
        self._num_ended = 0

    async def run(self, work: Iterable[Due]) -> LoadReport:
        """Send all requests at their times and wait for their ends. Raises httpx.HTTPError if there is no server.

        Cancelling stops all requests.
        """
        async with self._client:
            model = self._model or await self._first_model()
            self._began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for due in work:
                    if (early := due.at - self._now()) > 0:
                        await asyncio.sleep(early)
                    tasks.create_task(self._insist(due, model))
        return self.report()

    def report(self) -> LoadReport:
        """Return the results so far."""
        done = [sent for sent in self.sent if sent.last and not sent.error]
        good = sum(self._objective.is_met(sent) for sent in done)
        seconds, tokens = self._now(), sum(sent.num_tokens for sent in done)
        ended = self._num_ended
        has_objective = self._objective.is_set
        return LoadReport(
            seconds=seconds,
            num_sent=len(self.sent),
            num_running=len(self.sent) - ended,
            num_done=len(done),
            errors=dict(Counter(sent.error for sent in self.sent if sent.error)),
            prompt_tokens=sum(sent.num_prompt_tokens for sent in done),
            output_tokens=tokens,
            requests_per_s=len(done) / seconds,
            output_tokens_per_s=tokens / seconds,
            goodput_per_s=good / seconds if has_objective else None,
            good_share=good / ended if has_objective and ended else None,
            ttft=percentiles([sent.ttft for sent in done]),
            itl=percentiles([gap for sent in done for gap in sent.gaps]),
            tpot=percentiles([sent.tpot for sent in done if sent.num_tokens > 1]),
            e2e=percentiles([sent.e2e for sent in done]),
        )

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _first_model(self) -> str:
        response = await self._client.get("/v1/models")
        response.raise_for_status()
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise httpx.RemoteProtocolError("/v1/models lists no model") from None

    async def _insist(self, due: Due, model: str) -> None:
        for attempt in range(1, due.attempts + 1):
            sent = Sent(due.at, len(due.prompt), name=due.name, attempt=attempt)
            self.sent.append(sent)
            await self._send(due, model, sent)
            if not sent.error:
                return
            if due.backoff_s and attempt < due.attempts:
                await asyncio.sleep(due.backoff_s * 2 ** (attempt - 1))

    async def _send(self, due: Due, model: str, sent: Sent) -> None:
        body = {
            "model": model,
            "prompt": due.prompt,
            "max_tokens": due.output_len,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"priority": due.priority} if due.priority else {}),
            **self._body,
            **due.body,
        }
        try:
            async with asyncio.timeout(due.patience_s):
                await self._stream(body, due.headers, sent)
        except httpx.HTTPError as error:
            sent.error = sent.error or type(error).__name__
        except TimeoutError:
            sent.error = sent.error or LEFT
        finally:
            self._num_ended += 1

    async def _stream(self, body: dict[str, Any], headers: Mapping[str, str], sent: Sent) -> None:
        # Parsing all events would take as long as the server takes to write them.
        stream = EventStream(skims=not self._keeps_choices)
        async with self._client.stream("POST", COMPLETIONS, json=body, headers=dict(headers)) as response:
            if response.status_code != 200:
                await response.aread()
                sent.error = f"HTTP {response.status_code}"
                return
            try:
                async for received in response.aiter_bytes():
                    for event in stream.feed(received):
                        self._take(event.content or {}, sent)
                    if stream.error is not None:
                        sent.error = stream.error.what
                    if stream.is_over and not stream.is_done:
                        break
            except httpx.HTTPError:
                if not stream.is_done:
                    raise
        if stream.fault is not None:
            sent.error = stream.fault.what
        elif not sent.num_tokens:
            sent.error = "a stream without usage"

    def _take(self, chunk: dict[str, Any], sent: Sent) -> None:
        """Count a chunk: the first, one more, or the usage at the end."""
        now = self._now()
        if self._keeps_choices:
            sent.choices += chunk.get("choices") or ()
        if chunk.get("usage"):
            sent.num_tokens = usage(chunk, "completion_tokens")
        elif not chunk.get("choices"):
            return  # [DONE], a comment, an error
        elif sent.first:
            sent.gaps.append(now - sent.last)
            sent.last = now
        else:
            sent.first = sent.last = now


def due(work: Iterable[SimRequest], vocabulary: int) -> Iterator[Due]:
    """Yield the requests of a simulated workload; prompts consist of ids below `vocabulary`."""
    for request in work:
        yield Due(request.arrival, prompt_ids(request, vocabulary), request.output_len, request.priority)


def prompt_ids(request: SimRequest, vocabulary: int) -> list[int]:
    """Return the token ids of a simulated prompt: equal where its tokens are, otherwise as good as random."""
    return [LOWEST_ID + (token * 2654435761 >> 7) % (vocabulary - LOWEST_ID) for token in request.tokens()]
