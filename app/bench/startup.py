"""Time a fresh process up to its first token, phase by phase, with and without compiled kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import time

from app.bench.timing import Tell, partial_results

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import time; marks = [time.time()]
import torch; marks.append(time.time())
from engine import LLM, SamplingParams; LLM; marks.append(time.time())
from kernels import registry; registry.unavailable("cpu"); marks.append(time.time())
llm = LLM({model!r}); marks.append(time.time())
params = SamplingParams(temperature=0, max_tokens=1)
llm.generate(["Hello"], params, use_tqdm=False); marks.append(time.time())
import json; print(json.dumps(marks))
"""
PHASES = (
    "interpreter",
    "import torch",
    "import engine",
    "load kernels",
    "load weights, size cache",
    "first token",
    "exit",
)


@dataclass
class StartupReport:
    """Times in seconds. `phases` and the totals are medians over the runs."""

    model: str
    runs: list[list[float]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    total: float = 0.0
    """Time of the whole process, as seen by the user."""
    runs_without_kernels: list[list[float]] = field(default_factory=list)
    total_without_kernels: float = 0.0
    """The same while the C++ kernels are not compiled yet: as on a fresh machine, but with an idle compiler."""
    interrupted: bool = False


def measure(tell: Tell, model: str, *, runs: int = 3) -> StartupReport:
    """Run the benchmark; Ctrl-C ends it early with the runs that are done."""
    report = StartupReport(model)
    with partial_results(report):
        for number in range(runs + 1):  # the first warms the disk cache
            tell(f"process {number + 1} of {runs + 1}")
            durations, without = _one_process(model), _one_process(model, PREP_KERNELS_COMPILER="")
            if number > 0:
                report.runs.append(durations)
                report.runs_without_kernels.append(without)
    if report.runs:
        report.phases = {name: median(run[i] for run in report.runs) for i, name in enumerate(PHASES)}
        report.total = median(map(sum, report.runs))
        report.total_without_kernels = median(map(sum, report.runs_without_kernels))
    return report


def _one_process(model: str, **environment: str) -> list[float]:
    start = time()
    process = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM.format(model=model)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    end = time()
    if process.returncode != 0:
        raise RuntimeError(f"the process failed: {process.stderr.strip().splitlines()[-1]}")
    marks = [start, *json.loads(process.stdout.splitlines()[-1]), end]
    return [after - before for before, after in zip(marks, marks[1:], strict=False)]
