"""Run experiments in a worker process: warm between questions, limited in time and memory, results cached.

with Runner() as runner:
    runner.warm("roofline.decode")        # returns at once; imports continue while the learner reads
    runner.run("roofline.decode", {"batch": 8}).result["intensity"]
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from prep_common.child_process import JsonChild, ProcessEnded, describe_exit
from prep_common.process_family import family
from quizzes.experiments import results_cache
from quizzes.experiments.registry import BadArguments, Inconclusive, NeedsHardware, UnknownExperiment, get

START_SECONDS = 120.0
"""Limit for imports, before an experiment's own limit begins."""
CORES = 2
"""Cores that an experiment's limit assumes."""
PATIENCE = 6
"""Multiple of the limit allowed by the clock: long enough for a busy machine, and it ends a hanging experiment."""
_LOOK_EVERY = 0.1
_MIB = 1 << 20


class RunFailed(Exception):
    """The experiment gave no result. Nothing is scored, and the next run starts a new worker if needed."""

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details
        """Traceback of the experiment, if any."""


class OverTime(RunFailed):
    """Stopped at its time limit."""


class OverMemory(RunFailed):
    """Stopped at its memory limit."""


@dataclass(frozen=True)
class Outcome:
    """A run that gave a result."""

    name: str
    args: dict[str, Any]
    """All arguments, with defaults filled in."""
    result: dict[str, Any]
    seconds: float
    cached: bool
    determinism: str


class Runner:
    """Owns one worker process; it starts on first use, and again after it was stopped."""

    def __init__(self, *, cache: bool = True) -> None:
        self._cache = cache
        self._worker: JsonChild | None = None
        self._unanswered = 0
        """Warm commands whose answers have not been read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def warm(self, name: str) -> None:
        """Begin to import what `name` needs. Returns at once; `run` reports a name that does not exist."""
        try:
            self._send({"do": "warm", "name": name})
            self._unanswered += 1
        except ProcessEnded:
            self.close()

    def run(
        self,
        name: str,
        args: dict[str, Any] | None = None,
        *,
        seed: int = 0,
        trace: Path | None = None,
        fresh: bool = False,
    ) -> Outcome:
        """Return the result, from the cache if it is there and no trace is wanted.

        fresh: run it even if the result is cached.

        Raises:
            UnknownExperiment, BadArguments: nothing was run.
            Inconclusive, NeedsHardware: it cannot decide here; not a failure.
            OverTime, OverMemory, RunFailed: it was stopped, or broke.
        """
        experiment = get(name)
        values = experiment.check(args or {})
        plain = json.loads(json.dumps(values, default=str))
        key = results_cache.key_of(experiment, plain, seed)
        if self._cache and not fresh and trace is None:
            cached = results_cache.read(experiment, key)
            if cached is not None:
                return Outcome(name, values, cached, 0.0, True, experiment.determinism)
        began = time.monotonic()
        place = str(trace.resolve()) if trace else None
        command = {"do": "run", "name": name, "args": plain, "seed": seed, "trace": place}
        try:
            answer = self._ask(command, _Limit(name, experiment.seconds, experiment.megabytes))
        except BaseException:
            self.close()
            raise
        if not answer["ok"]:
            raise _error(name, answer)
        seconds = time.monotonic() - began
        if self._cache:
            results_cache.write(experiment, key, answer["result"], seconds)
        return Outcome(name, values, answer["result"], seconds, False, experiment.determinism)

    def close(self) -> None:
        """End the worker and its child processes."""
        worker, self._worker, self._unanswered = self._worker, None, 0
        if worker is not None:
            worker.kill()

    # -- messages to and from the worker

    def _send(self, command: dict[str, Any]) -> None:
        if self._worker is None or not self._worker.is_running:
            self.close()
            self._worker = JsonChild(
                "quizzes.experiments.running",
                name="the process for experiments",
                environment={"PYTHONHASHSEED": "0"},
                grace_s=0.0,
                keep_stderr=os.environ.get("PREP_DEBUG", "") in ("", "0"),
            )
        self._worker.write(command)

    def _ask(self, command: dict[str, Any], limit: _Limit) -> dict[str, Any]:
        self._send_again(command)
        retried = False
        while True:
            assert self._worker is not None
            try:
                answer = self._worker.read(_LOOK_EVERY)
            except ProcessEnded as ended:
                if limit.began is not None or retried:
                    what = f"{limit.name}: its process {describe_exit(ended.exit_code)} without a result"
                    raise RunFailed(what, details=ended.last_words) from None
                retried = True  # it was killed between two runs
                self._send_again(command)
                continue
            if answer is None:
                limit.check(self._worker.pid)
            elif answer.get("started"):
                limit.begin(self._worker.pid)
            elif self._unanswered:
                self._unanswered -= 1
            else:
                return dict(answer)

    def _send_again(self, command: dict[str, Any]) -> None:
        try:
            self._send(command)
        except ProcessEnded:
            self.close()
            self._send(command)


class _Limit:
    """Limits of one run. Time is processor time, since the machine may be busy."""

    def __init__(self, name: str, seconds: float, megabytes: int) -> None:
        self.name, self.seconds, self.megabytes = name, seconds, megabytes
        self.began: float | None = None
        self.asked = time.monotonic()
        self.used_before = 0.0

    def begin(self, pid: int) -> None:
        self.began, self.used_before = time.monotonic(), _processor_seconds(pid)

    def check(self, pid: int) -> None:
        used = _megabytes(pid)
        if used > self.megabytes:
            raise OverMemory(f"{self.name} took {used:,} MiB; its limit is {self.megabytes:,} MiB. Stopped")
        if self.began is None:
            if time.monotonic() - self.asked > START_SECONDS:
                raise OverTime(f"{self.name} did not start within {START_SECONDS:g} s. Stopped")
            return
        if (
            _processor_seconds(pid) - self.used_before > self.seconds * CORES
            or time.monotonic() - self.began > self.seconds * PATIENCE
        ):
            raise OverTime(f"{self.name} ran longer than its limit of {self.seconds:g} s. Stopped")


def _megabytes(pid: int) -> int:
    """Resident memory of the worker and its children."""
    try:
        return sum(int(member.memory_info().rss) for member in family(psutil.Process(pid))) // _MIB
    except psutil.Error:
        return 0


def _processor_seconds(pid: int) -> float:
    try:
        times = [member.cpu_times() for member in family(psutil.Process(pid))]
    except psutil.Error:
        return 0.0
    return sum(float(spent.user + spent.system) for spent in times)


def _error(name: str, answer: dict[str, Any]) -> Exception:
    kinds: dict[str, type[Exception]] = {
        "unknown": UnknownExperiment,
        "arguments": BadArguments,
        "inconclusive": Inconclusive,
        "hardware": NeedsHardware,
    }
    if answer["error"] in kinds:
        return kinds[answer["error"]](answer["message"])
    if answer["error"] == "memory":
        return OverMemory(f"{name} ran out of memory: {answer['message']}")
    last = answer.get("traceback", "").strip().splitlines()[-1:]
    return RunFailed(
        f"{name} failed: {last[0] if last else answer['message']}", details=answer.get("traceback", "")
    )
