"""Base of the stat loggers that report each request once, when it has ended."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from engine.core.sched_output import EngineCoreOutput
from engine.core.stats import StepStats
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.outputs import RequestOutput


class EndedRequests(ABC):
    """A StatLogger that calls `ended` for each request with its last output."""

    def __init__(self) -> None:
        self._epoch = time.time() - time.monotonic()
        """Seconds to add to the monotonic clock for the time of day."""
        self._open: dict[str, SubmittedRequest] = {}

    def add(self, submitted: SubmittedRequest) -> None:
        self._open[submitted.request_id] = submitted

    def step(
        self,
        stats: StepStats | None,
        when: float,
        core_outputs: Sequence[EngineCoreOutput],
        outputs: Sequence[RequestOutput],
    ) -> None:
        for output in outputs:
            if output.finished and (submitted := self._open.pop(output.request_id, None)) is not None:
                self.ended(submitted, output)

    @abstractmethod
    def ended(self, submitted: SubmittedRequest, output: RequestOutput) -> None:
        """Report a request. Called on the engine thread."""
