"""CUDA C++: compiled by NVRTC, launched from Python; without a GPU they run on a host shim, thread by thread.

    norm.cu         the kernel: what one thread does             common.cuh    types, wide loads, reductions
    norm.py         its launch: grid, block, shared memory       launch.py     to the GPU, or to the shim
                                                                 compile.py    NVRTC, and what it made of a kernel
                                                                 shim/         the execution model in 300 lines of C++

Start with norm.cu; copy.cu and kv_write.cu are as simple. paged_decode.cu is the one to study: paged_fma.cuh computes
it on CUDA cores, paged_mma.cuh on tensor cores (mma.cuh).
"""

from __future__ import annotations


def unavailable() -> str | None:
    """Reason why the CUDA kernels cannot be used in this process; None if they can."""
    from kernels.cuda.launch import problem

    return problem()
