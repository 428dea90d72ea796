"""Rows longer than two blocks of each kernel and a part of one, interpreted: the sizes come from the kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.check.case import Case
from kernels.check.run import _run
from kernels.registry import get
from kernels.triton_ops import activation, bitmask, copy, fp8, int8, logprobs, lora, moe, penalties, sampling

EMPTY_TOP = torch.ones(2)


def beyond(block: int) -> int:
    return 2 * block + 5


def _sampled(vocabulary: int) -> tuple[Tensor, ...]:
    top_k = torch.full((2,), vocabulary, dtype=torch.int32)
    keys = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    return (
        _peaked(vocabulary),
        torch.tensor([0.0, 0.7]),
        top_k,
        torch.tensor([1.0, 0.8]),
        torch.zeros(2),
        keys,
    )


def _peaked(vocabulary: int) -> Tensor:
    """Logits of 2 rows whose highest one stands at the end."""
    logits = torch.randn(2, vocabulary)
    logits[:, -1] = 8.0
    return logits


def _penalties(vocabulary: int) -> tuple[Tensor, ...]:
    seen = torch.rand(2, vocabulary) < 0.5
    return torch.randn(2, vocabulary), seen, seen.int() * 3, EMPTY_TOP * 1.5, EMPTY_TOP * 0.3, EMPTY_TOP * 0.2


def _words(vocabulary: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, (2, -(-vocabulary // 32)), dtype=torch.int64).int()


def _int8_weights(width: int) -> tuple[Tensor, Tensor]:
    return torch.randint(-127, 128, (3, width), dtype=torch.int8), torch.rand(3)


def _blocks(num_bytes: int) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.randint(-100, 100, (3, num_bytes), dtype=torch.int8)
    return source, torch.zeros_like(source), torch.tensor([[1, 2], [2, 0]])


def _adapters(tokens: int) -> Tensor:
    return torch.arange(tokens, dtype=torch.int32) % 3 - 1


CASES: dict[str, Callable[[], tuple[object, ...]]] = {
    "silu_and_mul": lambda: (torch.randn(1, 2 * beyond(activation.BLOCK)),),
    "apply_token_bitmask": lambda: (torch.randn(2, n := beyond(bitmask.BLOCK)), _words(n)),
    "copy_blocks": lambda: _blocks(beyond(copy.CHUNK) + 11),
    "int8_linear": lambda: (torch.randn(2, n := beyond(int8.BLOCK) + 11), *_int8_weights(n)),
    "fp8_linear": lambda: (
        torch.randn(2, n := beyond(fp8.BLOCK) + 11),
        torch.randn(3, n).to(torch.float8_e4m3fn),
        torch.rand(3),
    ),
    "gather_logprobs": lambda: (_peaked(n := beyond(logprobs.MAX_BLOCK)), torch.tensor([n - 1, 0])),
    "apply_penalties": lambda: _penalties(beyond(penalties.BLOCK)),
    "sample": lambda: _sampled(beyond(sampling.MAX_BLOCK)),
    "grouped_linear": lambda: (
        torch.randn(3, n := beyond(moe.BLOCK_K) + 11),
        torch.randn(2, 20, n),
        torch.tensor([1, 3]).int(),
    ),
    "lora_shrink": lambda: (
        torch.randn(7, n := beyond(lora.K_PER_SPLIT) + 11),
        torch.randn(1, 2, 16, n),
        _adapters(7),
    ),
}


@pytest.mark.parametrize("op", CASES)
def test_a_row_of_two_blocks_and_a_part_agrees_with_the_reference(op: str) -> None:
    torch.manual_seed(0)
    implementation = get(op, "triton")
    args = CASES[op]()
    assert implementation.unsupported(*args) is None
    _run(Case(op, "beyond two blocks", args), implementation.load())


def test_more_tokens_than_two_blocks_are_sorted_by_adapter() -> None:
    adapters = torch.randint(-1, 3, (beyond(lora.SORT_BLOCK),), dtype=torch.int32)
    order, starts = lora.sort_by_adapter(adapters, 3)
    wanted = [(adapters == adapter).nonzero().flatten().int() for adapter in range(3)]
    assert torch.equal(order[: starts[3]], torch.cat(wanted))
    assert starts.tolist() == torch.tensor([0, *map(len, wanted)]).cumsum(0).tolist()
