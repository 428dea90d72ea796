"""This machine: what it is, and its measured limits (memory bandwidth, rates of matrix products).

Data sheets promise what no program reaches, and a laptop shares its memory with a browser. So the limits are
measured in the same run as the kernels: torch copies and sums a buffer far larger than any cache, and multiplies
square matrices large enough to keep every unit busy. The best of many tries counts.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from kernels import ops
from kernels.bench.timing import interleaved
from kernels.reference import linear as reference

GPU_BUFFER_BYTES, CPU_BUFFER_BYTES = 2**31, 2**28
GPU_SIDE, CPU_SIDE = 8192, 1024
"""Rows and columns of the matrices."""
MIN_SECONDS = 0.4
"""For each limit."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and operations per second."""

    copy_bandwidth: float
    """Bytes read plus bytes written, when copying."""
    read_bandwidth: float
    """Bytes read, when summing up."""
    flops: dict[str, float] = field(default_factory=dict)
    """FLOP/s by type of the factors: float32, bfloat16, float16, int8, float8_e4m3fn, as far as torch has them here."""
    link_bandwidth: float | None = None
    """Bytes from pinned host memory to the GPU."""
    read_bandwidth_one_thread: float | None = None
    """Bytes read by one thread of a CPU alone."""

    def or_better(self, other: Limits) -> Limits:
        """The higher of both in everything."""
        return Limits(
            max(self.copy_bandwidth, other.copy_bandwidth),
            max(self.read_bandwidth, other.read_bandwidth),
            {name: max(rate, other.flops.get(name, 0.0)) for name, rate in self.flops.items()},
            _higher(self.link_bandwidth, other.link_bandwidth),
            _higher(self.read_bandwidth_one_thread, other.read_bandwidth_one_thread),
        )


def _higher(one: float | None, other: float | None) -> float | None:
    return max(one, other) if one and other else None


def measure_limits(device: str, tell: Callable[[str], None] = lambda text: None) -> Limits:
    """A few seconds."""
    tell("memory bandwidth")
    size = GPU_BUFFER_BYTES if device == "cuda" else CPU_BUFFER_BYTES
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    copy = 2 * size / best_seconds(lambda: target.copy_(source), device)
    read = size / best_seconds(lambda: source.sum(), device)
    link = read_one = None
    if device == "cpu":
        with one_thread():
            read_one = size / best_seconds(lambda: source.sum(), device)
    if device == "cuda":
        pinned = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
        landing = torch.empty_like(pinned, device=device)
        link = pinned.nbytes / best_seconds(lambda: landing.copy_(pinned, non_blocking=True), device)
    flops = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn):
        name = str(dtype).removeprefix("torch.")
        tell(f"matrix products in {name}")
        if (rate := gemm_rate(dtype, device)) is not None:
            flops[name] = rate
    return Limits(copy, read, flops, link, read_one)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gemm_rate(dtype: torch.dtype, device: str) -> float | None:
    """FLOP/s of a large square product (integer operations for int8); None where torch has no such product.

    On a CPU it is the best of torch's libraries (BLAS, oneDNN) and our kernels. BLAS alone is half as fast as the
    others on some processors (MKL on AMD's), and a limit that is beaten is none.
    """
    size = CPU_SIDE if device == "cpu" else GPU_SIDE // 2 if dtype == torch.float32 else GPU_SIDE
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    seconds = [best_seconds(ours, device) for ours in (_ours(left, right) if device == "cpu" else ())]
    with suppress(RuntimeError, NotImplementedError):  # torch has no such product here
        seconds.append(best_seconds(_product(left, right), device))
    return 2.0 * size**3 / min(seconds) if seconds else None


def _ours(left: torch.Tensor, right: torch.Tensor) -> list[Callable[[], object]]:
    """Return the products of our kernels for a CPU: of floats, or of bytes with scales."""
    if left.dtype in (torch.float32, torch.bfloat16):
        weights = [(library, library.pack_weight(right)) for library in (reference, ops)]
        return [partial(library.linear, left, weight) for library, weight in weights]
    if left.dtype == torch.int8:
        matrix = ops.pack_int8_weight(right, torch.ones(right.shape[0]))
        return [partial(ops.int8_linear, left.to(torch.bfloat16), *matrix)]
    return []


def _product(left: torch.Tensor, right: torch.Tensor) -> Callable[[], object]:
    if left.dtype == torch.int8:
        return lambda: torch._int_mm(left, right.T)
    if left.dtype == torch.float8_e4m3fn:
        one = torch.ones((), device=left.device)
        return lambda: torch._scaled_mm(left, right.T, one, one, out_dtype=torch.bfloat16)
    return lambda: left @ right.T


def best_seconds(call: Callable[[], object], device: str) -> float:
    """The shortest of as many tries as fit into `MIN_SECONDS`."""
    return interleaved({"": lambda _: call()}, device, seconds=MIN_SECONDS, graphs=False)[""].least


def cache_bytes(device: str) -> int:
    """The last cache before memory: what a measurement has to stay out of."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    levels = [
        path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max((int(size[:-1]) * 1024 for size in levels if size.endswith("K")), default=2**25)


@dataclass(frozen=True, slots=True)
class Machine:
    """On what, and with what, figures were measured."""

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
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = None
    hardware, driver = _cpu(), None
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        gigabytes = f"{card.total_memory / 2**30:.0f} GiB"
        hardware = f"{card.name}, {card.multi_processor_count} SMs, {gigabytes}"
        driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    commit = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty=-modified") or "unknown"
    python, day = platform.python_version(), date.today().isoformat()
    return Machine(hardware, torch.__version__, triton, driver, python, commit, day)


def _cpu() -> str:
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, {torch.get_num_threads()} threads on {os.cpu_count()} cores"


def _output(*command: str) -> str | None:
    """The first line a program prints; None if it fails."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (finished.stdout.splitlines() or [""])[0].strip() or None
