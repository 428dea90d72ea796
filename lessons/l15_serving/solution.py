"""Reference solutions of lesson 15."""

# ruff: noqa: E402, F811

# exercise 15.1
from collections import deque


class AdmissionControl:
    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_running, self.max_waiting = max_running, max_waiting
        self._running: set[str] = set()
        self._waiting: deque[str] = deque()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def offer(self, request_id: str) -> str:
        if request_id in self._running or request_id in self._waiting:
            raise ValueError(f"request {request_id} is here already")
        if len(self._running) < self.max_running:
            self._running.add(request_id)
            return "run"
        if len(self._waiting) < self.max_waiting:
            self._waiting.append(request_id)
            return "wait"
        return "reject"

    def finish(self, request_id: str) -> str | None:
        if request_id not in self._running:
            raise ValueError(f"request {request_id} does not run")
        self._running.remove(request_id)
        if not self._waiting:
            return None
        following = self._waiting.popleft()
        self._running.add(following)
        return following

    def abort(self, request_id: str) -> str | None:
        if request_id in self._running:
            return self.finish(request_id)
        if request_id in self._waiting:
            self._waiting.remove(request_id)
        return None


# exercise 15.2
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    if not values:
        raise ValueError("no values, so no percentile")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    below, share = int(rank), rank % 1
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return low if share == 0 or high == low else low + (high - low) * share  # inf - inf is NaN


def goodput(
    records: Sequence[tuple[float, float, float, int]], ttft_slo: float, tpot_slo: float, seconds: float
) -> float:
    good = 0
    for arrival, first, last, num_tokens in records:
        if num_tokens and first - arrival <= ttft_slo:
            good += num_tokens == 1 or (last - first) / (num_tokens - 1) <= tpot_slo
    return good / seconds


# exercise 15.3
import json


def sse(events: list[dict]) -> bytes:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


class SSEParser:
    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for raw in lines:
            line = raw.removesuffix(b"\r").decode()
            if line.startswith("data:"):
                self._data.append(line[5:].removeprefix(" "))
            elif not line and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
