"""Checks as jobs that run here or in a child process.

Triton decides when a kernel is defined whether it will be interpreted: a process either interprets or compiles.
So jobs that need a variable in the environment go to a child, `python -m kernels.check.jobs`. Both sides speak
JSON lines: the jobs go in, and a line comes out after every case.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from threading import Thread
from typing import Any

import torch

from kernels.check.draw import Size
from kernels.check.run import CaseResult, CheckReport, results
from prep_common.child_process import JsonChild, ProcessEnded
from prep_common.parent_link import JsonLink


@dataclass(frozen=True, slots=True)
class Job:
    """One operation in one backend and one type."""

    op: str
    backend: str
    dtype: str = "float32"
    device: str = "cpu"
    size: Size = "tiny"
    seed: int = 0
    only: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that must be there before the process starts."""

    def empty_report(self) -> CheckReport:
        return CheckReport(self.op, self.backend, self.dtype, self.size, self.seed)


def run_jobs(jobs: Sequence[Job], workers: int = 1) -> Iterator[tuple[Job, CaseResult]]:
    """Do all jobs, each case as soon as it is known.

    In this process, unless a job needs another environment or there are several workers: on a GPU nearly all the
    time goes into compiling kernels, which many processes do side by side.
    """
    for environment in dict.fromkeys(job.environment for job in jobs):
        portion = [job for job in jobs if job.environment == environment]
        if environment or workers > 1:
            yield from _run_in_children(portion, dict(environment), workers)
        else:
            yield from run_here(portion)


def run_here(jobs: Sequence[Job]) -> Iterator[tuple[Job, CaseResult]]:
    for job in jobs:
        try:
            dtype = getattr(torch, job.dtype)
            what = {
                "seed": job.seed,
                "size": job.size,
                "dtype": dtype,
                "device": job.device,
                "only": job.only,
            }
            for result in results(job.op, job.backend, **what):
                yield job, result
        except ImportError as error:
            yield job, CaseResult("import", "failed", f"the implementation does not load: {error}")


def _run_in_children(
    jobs: Sequence[Job], environment: dict[str, str], workers: int
) -> Iterator[tuple[Job, CaseResult]]:
    arrived: queue.Queue[tuple[Job, CaseResult] | Exception | None] = queue.Queue()
    children: list[tuple[JsonChild, Thread]] = []
    for portion in (jobs[number::workers] for number in range(min(workers, len(jobs)))):
        backends = ", ".join(dict.fromkeys(job.backend for job in portion))
        name = f"the process that checks {backends} kernels"
        child = JsonChild("kernels.check.jobs", name=name, environment=environment)
        listener = Thread(target=_listen, args=(child, portion, arrived.put), daemon=True)
        listener.start()
        children.append((child, listener))
    working = len(children)
    try:
        while working:
            event = arrived.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                working -= 1
            else:
                yield event
    finally:
        for child, listener in children:
            child.kill()
            listener.join()


def _listen(child: JsonChild, jobs: Sequence[Job], tell: Callable[[Any], None]) -> None:
    """Pass on every result; at the end None, or what went wrong."""
    try:
        child.write([asdict(job) for job in jobs])
        for number, result in child.records():
            tell((jobs[number], CaseResult(**result)))
    except ProcessEnded as ended:
        tell(None if ended.exit_code == 0 else ended)
    except (OSError, ValueError) as error:
        tell(error)


def main() -> None:
    """The child's side: jobs as JSON on stdin, a line [number of the job, result] for every case."""
    link = JsonLink()
    jobs = [Job(**{**entry, "environment": ()}) for entry in link.read()]
    numbers = {job: number for number, job in enumerate(jobs)}
    for job, result in run_here(jobs):
        link.write([numbers[job], asdict(result)])


if __name__ == "__main__":
    main()
