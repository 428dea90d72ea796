"""The child's side of `jobs.py`: jobs as JSON on stdin, a line [number of the job, result] for every case."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from kernels.check.jobs import Job, run_here


def main() -> None:
    jobs = [Job(**{**each, "environment": ()}) for each in json.load(sys.stdin)]
    numbers = {job: number for number, job in enumerate(jobs)}
    for job, result in run_here(jobs):
        print(json.dumps([numbers[job], asdict(result)]), flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the parent is told as well, and says so
        sys.exit(130)
