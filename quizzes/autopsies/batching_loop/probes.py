"""The loop with a model that counts, and a memory that notices."""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


@dataclass
class Request:
    """Generates `length` tokens, one a step; then the model answers None for it."""

    name: str
    length: int
    generated: int = 0


@dataclass
class Model:
    rows: list[int] = field(default_factory=list)
    """Rows of each forward pass."""
    rows_of_finished: int = 0
    finished: set[str] = field(default_factory=set)
    started: dict[str, None] = field(default_factory=dict)
    """Names in order of their first row."""

    def forward(self, batch: list[Request]) -> dict[str, int | None]:
        self.rows.append(len(batch))
        answers: dict[str, int | None] = {}
        for request in batch:
            self.started[request.name] = None
            self.rows_of_finished += request.name in self.finished
            request.generated += 1
            answers[request.name] = request.generated if request.generated < request.length else None
            if answers[request.name] is None:
                self.finished.add(request.name)
        return answers


@dataclass
class Memory:
    releases: list[str] = field(default_factory=list)

    def release(self, requests: list[Any]) -> None:
        self.releases += [request.name for request in requests]


def _run(given: ModuleType, lens: tuple[int, ...], slots: int, steps: int) -> tuple[Model, Memory]:
    model, memory = Model(), Memory()
    waiting = [Request(f"r{i}", length) for i, length in enumerate(lens)]
    given.continuous_batching(model, waiting, memory, slots, steps)
    return model, memory


def rows_for_finished(given: ModuleType, *, lens: tuple[int, ...] = (2, 5, 3), steps: int = 8) -> int:
    """Rows of forward passes that are computed for requests which had already finished."""
    return _run(given, tuple(lens), len(lens), steps)[0].rows_of_finished


def largest_batch(given: ModuleType, *, slots: int = 2, requests: int = 9, steps: int = 3) -> int:
    """Rows of the largest forward pass."""
    return max(_run(given, (4,) * requests, slots, steps)[0].rows)


def releases_of_the_first(given: ModuleType, *, length: int = 3, steps: int = 8) -> int:
    """Return how often the memory of one request is freed."""
    return _run(given, (length,), 1, steps)[1].releases.count("r0")


def passes_after_the_last_token(given: ModuleType, *, lens: tuple[int, ...] = (2, 3), steps: int = 20) -> int:
    """Return the forward passes after every request has finished."""
    model, _ = _run(given, tuple(lens), len(lens), steps)
    return len(model.rows) - max(lens)
