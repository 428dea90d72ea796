"""Report of the compilers on a learner's GPU kernel, without a GPU: registers, spills, shared memory, occupancy.

    cuda    NVRTC in this process                                          -> cubin for sm_80 and sm_90
    triton  a confined process that imports the file and compiles the launch of a call on meta tensors

With the bytes and FLOPs of one launch follows the least time on a GPU (roofline, Williams et al. 2009), and how many
waves of blocks it takes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kernels.compile_report import KernelReport
from kernels.outside_sources import BuildError, cuda_reports
from lessons.course.lesson_files import Lab
from prep_common.child_process import ROOT
from prep_common.sandbox import places
from prep_common.sandbox.compiler import CompilerRefused, compiled

SMS = {80: 108, 90: 132}
"""Streaming multiprocessors of an A100 and of an H100 SXM (NVIDIA Ampere and Hopper architecture white papers)."""
GPUS = {80: "a100-80", 90: "h100"}
"""Names in engine/sim/hardware.py."""
_COMPILE_TRITON = """
import dataclasses, json, sys
sys.path[:0] = [{root!r}, "."]
import torch
from kernels.triton_ops.compile import compile_launch, launches
import learner
args = [torch.empty(*a[0], dtype=getattr(torch, a[1]), device="meta") if isinstance(a, list) else a for a in {args}]
found = launches(lambda: getattr(learner, {name!r})(*args))
reports = [dataclasses.asdict(compile_launch(each, arch, "")) for each in found for arch in (80, 90)]
json.dump(reports, open("reports.json", "w"))
"""


@dataclass(frozen=True)
class GpuWork:
    """One launch to report on."""

    says: str
    num_bytes: int
    """The least that must be read and written."""
    flops: int
    args: Sequence[Any]
    """Arguments of the Triton function: (shape, dtype) for a tensor, or a number."""
    blocks: int
    """Blocks of the CUDA launch, and of the Triton launch if it follows the contract."""
    threads: int = 128
    shared_bytes: int = 0
    function: str = ""
    """Function to launch, in a lab that has several."""


class NotCompiledForGpu(ValueError):
    """The compiler refused the file, or is not installed."""


def gpu_works(lab: Lab) -> tuple[GpuWork, ...]:
    """Return the launches of a lab to report on: `GPU` of its race.py, one or several."""
    found = import_module(f"lessons.{lab.name}.race").GPU
    return found if isinstance(found, tuple) else (found,)


def gpu_reports(lab: Lab, source: str, work: GpuWork) -> list[KernelReport]:
    """Compile a learner's file for sm_80 and sm_90. Raises NotCompiledForGpu."""
    name = work.function or lab.exercise.objects[0]
    try:
        if lab.language == "cuda":
            return cuda_reports(source, name, work.threads, work.shared_bytes)
        return _triton(source, name, work)
    except (BuildError, CompilerRefused) as error:
        raise NotCompiledForGpu(str(error)) from None


def _triton(source: str, name: str, work: GpuWork) -> list[KernelReport]:
    args = [list(arg) if isinstance(arg, tuple) else arg for arg in work.args]
    script = _COMPILE_TRITON.format(root=str(ROOT), args=repr(args), name=name)
    readable, _ = places.readable(("prep_common", "kernels"))
    text = compiled(
        [sys.executable, "main.py"],
        {"learner.py": source, "main.py": script},
        "reports.json",
        [*readable, str(ROOT / "kernels")],
        environment={"TRITON_CACHE_DIR": "cache", "HOME": "."},
    )
    own = {"file": "learner.py"}  # and a name without a case in brackets, of which there is one
    return [
        KernelReport(**{**report, **own, "name": report["name"].removesuffix("[]")})
        for report in json.loads(text)
    ]


def widest_access(report: KernelReport) -> int:
    """Return the bytes of the widest load, store or asynchronous copy of global memory in the PTX."""
    found = re.findall(r"(?:ld|st)\.global[\w.:]*?(?:\.v(\d))?\.[bfsu](\d+)", report.ptx)
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global[^,]*,[^,]*, (\w+)", report.ptx)
    return max(
        [int(count or 1) * int(bits) // 8 for count, bits in found] + [int(size, 0) for size in copies] + [0]
    )


def waves(report: KernelReport, work: GpuWork) -> float:
    """Return how many times the launch fills all SMs."""
    return work.blocks / max(1, report.occupancy.blocks * SMS[report.arch])
