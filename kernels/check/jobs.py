"""What to check, as jobs that are done here or in a child process.

Triton decides when a kernel is defined whether it will be interpreted: a process either interprets or compiles.
So jobs that need a variable in the environment go to a child, `python -m kernels.check`. Both sides speak
JSON lines: the jobs go in, and a line comes out after every case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from kernels.check.cases import Size
from kernels.check.run import CaseResult, CheckReport, results

ROOT = Path(__file__).resolve().parents[2]


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


class ChildDied(RuntimeError):
    """The child ended without an answer: a crash in native code, or a missing library."""


def run_jobs(jobs: Sequence[Job]) -> Iterator[tuple[Job, CaseResult]]:
    """Do all jobs, each case as soon as it is known: those of this process, then those of each child."""
    for environment in dict.fromkeys(job.environment for job in jobs):
        portion = [job for job in jobs if job.environment == environment]
        yield from _run_in_child(portion, dict(environment)) if environment else run_here(portion)


def run_here(jobs: Sequence[Job]) -> Iterator[tuple[Job, CaseResult]]:
    for job in jobs:
        try:
            for result in results(
                job.op,
                job.backend,
                seed=job.seed,
                size=job.size,
                dtype=getattr(torch, job.dtype),
                device=job.device,
                only=job.only,
            ):
                yield job, result
        except ImportError as error:
            yield job, CaseResult("import", "failed", f"the implementation does not load: {error}")


def _run_in_child(jobs: Sequence[Job], environment: dict[str, str]) -> Iterator[tuple[Job, CaseResult]]:
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "kernels.check"],
            cwd=ROOT,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps([asdict(job) for job in jobs]))
            child.stdin.close()
            for line in child.stdout:
                number, result = json.loads(line)
                yield jobs[number], CaseResult(**result)
            if child.wait() != 0:
                errors.seek(0)
                last = (errors.read().strip() or "no message").splitlines()[-1]
                raise ChildDied(
                    f"the process that runs {jobs[0].backend} kernels ended with {child.returncode}: {last}"
                )
        finally:
            child.kill()
            child.wait()
