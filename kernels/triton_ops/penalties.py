"""Repetition, presence and frequency penalties in one pass, in place.

    logit  ->  logit / repetition if positive, else logit * repetition      tokens of the prompt or the output
           ->  - frequency * count - presence                               tokens of the output

A row reads its logits, one byte and one count for each token, so the limit is memory. Rows that penalise
nothing, which is most of them, return after three numbers.

Sources: CTRL (Keskar et al. 2019) for the repetition penalty, vLLM v1/sample/ops/penalties.py for the order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def penalties_kernel(
    logits,
    in_prompt,
    output_counts,
    repetitions,
    presences,
    frequencies,
    vocab_size,
    logits_stride,
    prompt_stride,
    counts_stride,
    BLOCK: tl.constexpr,
):
    """Program (row, j) edits BLOCK logits of a row."""
    row = tl.program_id(0).to(tl.int64)
    repetition = tl.load(repetitions + row)
    presence = tl.load(presences + row)
    frequency = tl.load(frequencies + row)
    if (repetition == 1) & (presence == 0) & (frequency == 0):
        return
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab_size
    values = tl.load(logits + row * logits_stride + token, mask=inside, other=0)
    count = tl.load(output_counts + row * counts_stride + token, mask=inside, other=0)
    prompted = tl.load(in_prompt + row * prompt_stride + token, mask=inside, other=0)
    factor = tl.where((count > 0) | (prompted != 0), repetition, 1.0)
    values = tl.where(values > 0, tl.div_rn(values, factor), values * factor)
    values -= frequency * count
    values -= tl.where(count > 0, presence, 0.0)
    tl.store(logits + row * logits_stride + token, values, mask=inside)


def apply_penalties(
    logits: Tensor,
    in_prompt: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    num_rows, vocab_size = logits.shape
    if num_rows:
        penalties_kernel[(num_rows, triton.cdiv(vocab_size, BLOCK))](
            *(logits, in_prompt, output_counts, repetition, presence, frequency),
            *(vocab_size, logits.stride(0), in_prompt.stride(0), output_counts.stride(0)),
            BLOCK=BLOCK,
        )


def compile_cases(arch: int) -> dict[str, Callable[[], object]]:
    def table(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(256, *shape, dtype=dtype, device="meta")

    tables = (table(torch.float32, 128256), table(torch.bool, 128256), table(torch.int32, 128256))
    return {"256 x 128256": lambda: apply_penalties(*tables, *[table(torch.float32)] * 3)}
