"""Simulated requests: arrival times, lengths and shared prefixes.

A request has lengths and times; its tokens are arbitrary numbers. A prompt consists of segments, and
two prompts share a prefix exactly as far as their segments agree, which exercises the prefix cache:

    segments   [ system prompt 3 ] [ own text 17 ]          tokens 3000000.. 3000001.. | 17000000.. ...
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal, Self

from engine.config import ConfigError
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from prep_common.text_file import read_text

Arrivals = Literal["poisson", "gamma", "constant"]
Tell = Callable[[int], None]  # called with the number of requests that have arrived

_STRIDE = 1 << 24  # tokens of segment s start at s * _STRIDE: longer than any prompt, so none overlap
_ANSWERS = -1  # first output token; outputs count downwards, so that no prompt contains one by chance


@dataclass(slots=True)
class SimRequest:
    """One request before its arrival."""

    index: int
    arrival: float
    prompt_len: int
    output_len: int
    prefix_id: int = -1  # equal ids start with the same `prefix_len` tokens; -1: no shared prefix
    prefix_len: int = 0
    priority: int = 0
    adapter: str | None = None

    @property
    def answer_token(self) -> int:
        """The simulated output: one token, repeated, different for every request."""
        return _ANSWERS - self.index

    @property
    def route_key(self) -> str:
        """Equal for requests that share a prefix."""
        return f"prefix-{self.prefix_id}" if self.prefix_id >= 0 else f"request-{self.index}"

    def tokens(self) -> list[int]:
        own = (2 * self.index + 1) * _STRIDE
        if self.prefix_id < 0:
            return list(range(own, own + self.prompt_len))
        shared = min(self.prefix_len, self.prompt_len)
        start = 2 * self.prefix_id * _STRIDE
        return [*range(start, start + shared), *range(own, own + self.prompt_len - shared)]


@cache
def _params(max_tokens: int) -> SamplingParams:
    """Sampling parameters; building them costs more than scheduling."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def make_request(
    request: SimRequest, token_ids: list[int] | None = None, output_len: int | None = None
) -> Request:
    """Return the scheduler's request."""
    return Request(
        str(request.index),
        request.tokens() if token_ids is None else token_ids,
        _params(request.output_len if output_len is None else output_len),
        arrival_time=request.arrival,
        priority=request.priority,
        lora_key=request.adapter,
    )


@dataclass(frozen=True)
class Lengths:
    """Distribution of token counts: fixed, uniform, or log-normal with a mean and the sigma of its logarithm."""

    low: int
    high: int
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "1000", "500-1500" or "lognormal:1000:0.6". Raises ConfigError otherwise."""
        try:
            if text.startswith("lognormal:"):
                _, mean, sigma = text.split(":")
                lengths = cls(int(mean), int(mean), float(sigma))
            else:
                low, separator, high = text.partition("-")
                lengths = cls(int(low), int(high if separator else low))
        except ValueError:
            raise ConfigError(
                f"expected a number of tokens, a range like 500-1500 or lognormal:MEAN:SIGMA, got {text!r}"
            ) from None
        if not 1 <= lengths.low <= lengths.high or not 0 <= lengths.sigma < 5:
            rules = "a length is at least 1, a range goes upwards and sigma is under 5"
            raise ConfigError(f"{rules}; got {text!r}")
        return lengths

    def draw(self, rng: Random) -> int:
        if self.sigma:
            mu = math.log(self.low) - self.sigma**2 / 2
            return max(1, round(rng.lognormvariate(mu, self.sigma)))
        return self.low if self.low == self.high else rng.randint(self.low, self.high)

    @property
    def mean(self) -> float:
        return self.low if self.sigma else (self.low + self.high) / 2

    @property
    def longest(self) -> int:
        """Bound on nearly every draw: four sigma of a log-normal."""
        return math.ceil(self.low * math.exp(4 * self.sigma)) if self.sigma else self.high

    def __str__(self) -> str:
        if self.sigma:
            return f"lognormal:{self.low}:{self.sigma:g}"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True)
class Workload:
    """Requests drawn from distributions. The same seed gives the same requests."""

    num_requests: int
    rate: float  # requests per second; infinite: all at once
    prompt: Lengths
    output: Lengths
    arrivals: Arrivals = "poisson"
    cv: float = 2.0  # of gamma arrivals: standard deviation over mean of the gaps; 1 is Poisson
    num_prefixes: int = 0  # number of different prefixes; 0: no prefix is shared
    prefix_len: int = 0
    max_model_len: int = 1 << 20
    seed: int = 0
    phases: tuple[tuple[float, float], ...] = ()  # (seconds, rate), repeated; empty: `rate`

    def __post_init__(self) -> None:
        if self.num_requests < 1:
            raise ConfigError(f"num_requests must be at least 1, got {self.num_requests}")
        if not self.rate > 0:
            what = "positive requests per second (inf: all at once)"
            raise ConfigError(f"rate must be {what}, got {self.rate}")
        if not self.cv > 0:
            raise ConfigError(f"cv must be positive, got {self.cv}")
        if self.arrivals not in ("poisson", "gamma", "constant"):
            raise ConfigError(f"arrivals must be poisson, gamma or constant, got {self.arrivals!r}")
        valid = all(length > 0 and rate >= 0 for length, rate in self.phases)
        if self.phases and not (valid and any(rate for _, rate in self.phases)):
            raise ConfigError(f"phases are seconds and rates, some rate positive; got {self.phases}")
        if self.num_prefixes and not 0 < self.prefix_len:
            raise ConfigError("prefix sharing needs a prefix length of at least 1 token")

    def __iter__(self) -> Iterator[SimRequest]:
        gaps, lengths = Random(f"gaps-{self.seed}"), Random(f"lengths-{self.seed}")
        prefixes = Random(f"prefixes-{self.seed}")
        moments = self._moments(gaps)
        for index in range(self.num_requests):
            prompt, output = self._lengths(lengths)
            prefix = prefixes.randrange(self.num_prefixes) if self.num_prefixes else -1
            yield SimRequest(index, next(moments), prompt, output, prefix, self.prefix_len)

    def _lengths(self, rng: Random) -> tuple[int, int]:
        """Draw prompt and output lengths, truncated to the model's maximum as by a server."""
        prompt = min(self.prompt.draw(rng), self.max_model_len - 1)
        return prompt, min(self.output.draw(rng), self.max_model_len - prompt)

    def _moments(self, rng: Random) -> Iterator[float]:
        """Yield arrival times. A gap is drawn in units of the mean gap and shrinks while the rate is higher."""
        if not self.phases:
            now = 0.0
            while True:
                yield now
                now += self._gap(rng) / self.rate
        start, index, gap = 0.0, 0, 0.0
        while True:  # one phase after the other
            length, rate = self.phases[index % len(self.phases)]
            now = start
            while rate and gap <= (start + length - now) * rate:
                now += gap / rate
                yield now
                gap = self._gap(rng)
            gap -= (start + length - now) * rate
            start, index = start + length, index + 1

    def _gap(self, rng: Random) -> float:
        """Draw the gap between two arrivals, in units of the mean."""
        if self.arrivals == "constant":
            return 1.0
        if self.arrivals == "poisson":
            return rng.expovariate(1.0)
        shape = 1 / self.cv**2
        return rng.gammavariate(shape, 1 / shape)


def parse_phases(text: str) -> tuple[tuple[float, float], ...]:
    """Parse "300:4,300:12": 4 requests per second for 300 s, then 12 for 300 s, repeated."""
    try:
        pairs = (part.split(":") for part in text.split(","))
        return tuple((float(length), float(rate)) for length, rate in pairs)
    except ValueError:
        example = "300:4,300:12 (seconds:requests per second)"
        raise ConfigError(f"phases look like {example}, got {text!r}") from None


def read_trace(path: str | Path) -> list[SimRequest]:
    """Read JSON lines: arrival (seconds), prompt, output (tokens); optional prefix, prefix_len, priority.

    The first request arrives at 0; the log of `prep serve --request-log` counts from 1970.
    Raises UnreadableFile, and ConfigError with the line's number for any other content.
    """
    requests: list[SimRequest] = []
    for number, line in enumerate(read_text(Path(path)).splitlines(), 1):
        if line.strip() and (request := _traced(line, len(requests), f"{path}, line {number}")):
            requests.append(request)
    if not requests:
        raise ConfigError(f"{path} holds no requests")
    requests.sort(key=lambda request: request.arrival)
    first = requests[0].arrival
    return [replace(request, arrival=request.arrival - first) for request in requests]


def _traced(line: str, index: int, where: str) -> SimRequest | None:
    try:
        entry: dict[str, Any] = {"prefix": -1, "prefix_len": 0, "priority": 0} | json.loads(line)
        names = ("prompt", "output", "prefix", "prefix_len", "priority")
        if "finish_reason" in entry and entry["output"] == 0:
            return None  # a line of a server's request log about a request that got no token
        prompt, output, prefix, prefix_len, priority = (int(entry[name]) for name in names)
        request = SimRequest(index, float(entry["arrival"]), prompt, output, prefix, prefix_len, priority)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f'{where}: expected an object like {{"arrival": 0.5, "prompt": 800, "output": 100}}, got '
            f"{line.strip()[:80]!r} ({type(error).__name__}: {error})"
        ) from None
    if request.prompt_len < 1 or request.output_len < 1 or not 0 <= request.arrival < math.inf:
        raise ConfigError(f"{where}: lengths are at least 1 and arrivals are seconds from 0 on")
    return request
