"""Choosing tokens on the CPU: the algorithm is in sampling.cpp, the rules in `ops.sample`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.build import function
from kernels.cpu.memory import empty

_sample = function("sample", "plll" + "ppppppp")
_apply_token_bitmask = function("apply_token_bitmask", "plllpl")


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    num_rows, vocab_size = logits.shape
    token_ids = empty((num_rows,), torch.int64)
    peaks = empty((num_rows,), torch.float32)
    _sample(
        *(logits.data_ptr(), logits.stride(0), num_rows, vocab_size),
        *(tensor.data_ptr() for tensor in (temperature, top_k, top_p, min_p, keys, token_ids, peaks)),
    )
    return token_ids, peaks


def unsupported_sample(logits: Tensor, *_: Tensor) -> str | None:
    return _only_float32(logits)


def apply_token_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    num_rows, vocab_size = logits.shape
    _apply_token_bitmask(
        logits.data_ptr(), logits.stride(0), num_rows, vocab_size, bitmask.data_ptr(), bitmask.stride(0)
    )


def unsupported_apply_token_bitmask(logits: Tensor, bitmask: Tensor) -> str | None:
    return _only_float32(logits)


def _only_float32(logits: Tensor) -> str | None:
    return None if logits.dtype == torch.float32 else f"logits are {logits.dtype}; float32 is supported"
