"""On what, and with what, figures were measured."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Machine:
    hardware: str
    torch: str
    triton: str | None
    driver: str | None
    python: str
    commit: str
    """"-modified" behind it if files of the working tree differ."""
    day: str


def describe(device: str) -> Machine:
    """This machine, these versions, this commit."""
    return Machine(
        hardware=_gpu() if device == "cuda" else _cpu(),
        torch=torch.__version__,
        triton=_version_of("triton"),
        driver=_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        if device == "cuda"
        else None,
        python=platform.python_version(),
        commit=_output("git", "-C", str(ROOT), "describe", "--always", "--dirty=-modified") or "unknown",
        day=date.today().isoformat(),
    )


def _gpu() -> str:
    card = torch.cuda.get_device_properties(0)
    return f"{card.name}, {card.multi_processor_count} SMs, {card.total_memory / 2**30:.0f} GiB"


def _cpu() -> str:
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, {torch.get_num_threads()} threads on {os.cpu_count()} cores"


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """The first line a program prints; None if it cannot be had."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (finished.stdout.splitlines() or [""])[0].strip() or None
