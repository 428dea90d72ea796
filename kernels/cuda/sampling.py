"""Choosing tokens on the GPU: launches of sampling.cu."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.cuda.launch import kernel, launch, vector_width

THREADS = 256
BINS = 32
SHARED_BYTES = BINS * THREADS * (4 + 2)
"""Columns of bins: a sum in fp32 and a count in 16 bits for each thread."""
MAX_VOCAB = 1 << 23
"""Up to here 16 bits hold a thread's count, and fp32 the count of all threads."""


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    rows, vocab_size = logits.shape
    token_ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(rows, dtype=torch.float32, device=logits.device)
    parameters = [parameter.contiguous() for parameter in (temperature, top_k, top_p, min_p, keys)]
    launch(
        kernel("sampling.cu", "sample", "ppppppppli", THREADS=THREADS, VEC=vector_width(vocab_size, logits)),
        *(logits, *parameters, token_ids, peaks),
        *(logits.stride(0), vocab_size),
        grid=(rows,),
        block=(THREADS,),
        shared_bytes=SHARED_BYTES,
        device=logits.device,
    )
    return token_ids, peaks


def unsupported_sample(logits: Tensor, *_: Tensor) -> str | None:
    if logits.dtype != torch.float32:
        return f"logits in {logits.dtype}; supported: float32"
    if not 0 < logits.shape[1] <= MAX_VOCAB:
        return f"a vocabulary of {logits.shape[1]}; supported: 1 to {MAX_VOCAB}"
    return None


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    logits = torch.empty(256, 128256, device="meta")
    row = torch.empty(256, device="meta")
    keys = torch.empty(256, 2, dtype=torch.int32, device="meta")
    return {"vocabulary 128256": lambda: sample(logits, row, row, row, row, keys)}
