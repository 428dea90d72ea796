"""The child's side of `jobs.py`: jobs as JSON on stdin, a line [number of the job, result] for every case."""

from __future__ import annotations

from dataclasses import asdict

from common.parent_link import JsonLink
from kernels.check.jobs import Job, run_here


def main() -> None:
    link = JsonLink()
    jobs = [Job(**{**each, "environment": ()}) for each in link.read()]
    numbers = {job: number for number, job in enumerate(jobs)}
    for job, result in run_here(jobs):
        link.write([numbers[job], asdict(result)])


if __name__ == "__main__":
    main()
