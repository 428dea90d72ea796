"""Serve the requests of a recorded run with a learner's part behind the engine's scheduler; compare the decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.trace.divergence import describe
from engine.trace.reader import TraceReader
from engine.trace.script import read_script
from lessons.course.checking import Learner
from lessons.course.lesson_files import Lab
from lessons.course.workspace import WorkspaceError
from lessons.labs.racing import racer
from lessons.labs.recording import record_both, recorded

SEAM = "behind_engine"
"""Function of a lab's checks: (learner, scheduler settings, cache settings) -> scheduler on the learner's part."""
MAX_STEPS = 20_000


@dataclass(frozen=True)
class Submission:
    num_requests: int
    num_steps: int
    """Steps of the engine with its own part."""
    differs: str
    """The first decision that differs, a sentence; empty if none does."""
    yours: Path
    ours: Path
    step: int
    """First step that differs, or the last one."""

    @property
    def ok(self) -> bool:
        return not self.differs


@dataclass(frozen=True)
class Arrival:
    """A request of the recording: the step before which it arrives, and its tokens."""

    step: int
    name: str
    prompt: list[int]
    output: list[int]


def has_seam(lab: Lab) -> bool:
    """Whether the lab's part runs behind the engine's scheduler."""
    return f"def {SEAM}(" in (lab.folder / "checks.py").read_text(encoding="utf-8")


def submit(lab: Lab, source: str, file: Path) -> Submission:
    """Compare the engine with the learner's part and without. Raises TraceError or WorkspaceError for a bad file."""
    reader = TraceReader(file)
    arrivals = [
        Arrival(each.history.added, each.request_id, list(each.history.record["prompt"]), each.tokens)
        for each in read_script(reader).requests
        if each.tokens
    ]
    if not arrivals:
        raise WorkspaceError(f"{file} has no request with output; record a run that generates tokens")
    config, cache = _settings(lab, reader, arrivals)
    checks = import_module(f"lessons.{lab.name}.checks")
    why: list[str] = []
    with racer(source, seconds=120.0) as guest:

        def yours(path: Path) -> None:
            try:
                serve(getattr(checks, SEAM)(Learner(guest), config, cache), arrivals, path)
            except Exception as error:  # of the learner's part, or of the engine that judges it
                why.append(str(error))

        found = record_both(lab.number, yours, lambda path: serve(Scheduler(config, cache), arrivals, path))
    if found is None:
        raise WorkspaceError("the traces cannot be written; choose another folder with PREP_LESSONS=FOLDER")
    mine, right, step = found
    return _compare(arrivals, mine, right, step, why)


def _compare(arrivals: list[Arrival], mine: Path, right: Path, step: int, why: list[str]) -> Submission:
    your_run, our_run = TraceReader(mine), TraceReader(right)
    difference = describe(your_run, our_run, step)
    said = ""
    if why:
        said = f"step {your_run.num_steps}: {why[0]}"
    elif difference.kinds:
        said = f"step {step}, yours: {difference.a.decided} Ours: {difference.b.decided}"
    elif your_run.num_steps != our_run.num_steps:
        said = f"yours takes {your_run.num_steps} steps, ours {our_run.num_steps}"
    return Submission(len(arrivals), our_run.num_steps, said, mine, right, step)


def _settings(lab: Lab, reader: TraceReader, arrivals: list[Arrival]) -> tuple[SchedulerConfig, CacheConfig]:
    """Return the engine's settings as the recording has them, as far as the lab's part supports them."""
    parts = reader.header.get("config") or {}
    scheduler, cache = parts.get("scheduler") or {}, parts.get("cache") or {}
    longest = max(len(each.prompt) + len(each.output) for each in arrivals)
    config = SchedulerConfig(
        int(scheduler.get("max_num_batched_tokens", 2048)),
        int(scheduler.get("max_num_seqs", 128)),
        max(longest + 1, int(scheduler.get("max_model_len", 0))),
    )
    return config, lab_cache(lab, int(reader.header["blocks"]), int(reader.header["block_size"]), cache)


def lab_cache(lab: Lab, num_blocks: int, block_size: int, recorded: dict[str, Any]) -> CacheConfig:
    """Return the cache of a lab: prefix caching, a host tier or a window only where the part is about it."""
    from engine.config import TierConfig

    if lab.number == "prefix-cache":
        return CacheConfig(num_blocks, block_size, True)
    if lab.number == "swap-tier":
        tiers = TierConfig(num_blocks, offload=True)
        return CacheConfig(num_blocks, block_size, True, tiers=tiers)
    if lab.number == "sliding-window":
        window = recorded.get("sliding_window") or 4 * block_size
        return CacheConfig(num_blocks, block_size, True, sliding_window=int(window))
    return CacheConfig(num_blocks, block_size, False)


def serve(scheduler: Scheduler, arrivals: list[Arrival], path: Path) -> None:
    """Serve the requests at their recorded steps, each with its recorded output, and record the run."""
    outputs = {each.name: each.output for each in arrivals}
    ahead = sorted(arrivals, key=lambda each: each.step)
    with recorded(path, scheduler):
        for step in range(MAX_STEPS):
            for each in _due(ahead, step):
                params = SamplingParams(temperature=0, max_tokens=len(each.output), ignore_eos=True)
                scheduler.add(Request(each.name, each.prompt, params))
            if not scheduler.has_unfinished() and not ahead:
                return
            out = scheduler.schedule()
            result = ModelRunnerOutput()
            for row in out.scheduled:
                request = scheduler.requests.get(row.request_id)
                if request is not None and row.start + row.num_tokens >= request.num_tokens:
                    token = outputs[row.request_id][request.num_output_tokens]
                    result.sampled_token_ids[row.request_id] = [token]
            scheduler.update(out, result)
    raise RuntimeError(f"requests are unfinished after {MAX_STEPS:,} steps")


def _due(ahead: list[Arrival], step: int) -> Iterator[Arrival]:
    while ahead and ahead[0].step <= step:
        yield ahead.pop(0)
