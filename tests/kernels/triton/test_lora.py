"""LoRA for many adapters at once, interpreted."""

from __future__ import annotations

import torch

from kernels.reference import lora as reference
from kernels.triton_ops import lora


def test_tokens_are_sorted_by_adapter_in_their_order_without_those_that_have_none() -> None:
    order, starts = lora.sort_by_adapter(torch.tensor([2, 0, -1, 2, 0], dtype=torch.int32), 3)
    assert starts.tolist() == [0, 2, 2, 4]
    assert order[:4].tolist() == [1, 4, 0, 3]


def test_long_sums_are_cut_into_parts_large_ranks_into_steps_and_many_tokens_into_tiles() -> None:
    generator = torch.Generator().manual_seed(0)
    k, rank = 2 * lora.K_PER_SPLIT + 16, 2 * lora.MAX_BLOCK_R + 6
    x = torch.randn(20, k, generator=generator)
    lora_a = torch.randn(1, 2, rank, k, generator=generator) / k**0.5
    lora_b = [torch.randn(2, 24, rank, generator=generator)]
    adapters, scaling = torch.tensor([1, -1, *[0] * 18], dtype=torch.int32), torch.tensor([0.5, 2.0])
    shrunk = lora.lora_shrink(x, lora_a, adapters)
    torch.testing.assert_close(shrunk, reference.lora_shrink(x, lora_a, adapters), rtol=1e-4, atol=1e-4)
    y = torch.ones(20, 24)
    want = y.clone()
    lora.lora_expand(shrunk, lora_b, adapters, y, scaling)
    reference.lora_expand(shrunk, lora_b, adapters, want, scaling)
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)


def test_mixed_types_are_refused_by_name() -> None:
    x, adapters = torch.zeros(1, 16), torch.zeros(1, dtype=torch.int32)
    assert "one type" in (lora.unsupported_lora_shrink(x, x.half()[None, None], adapters) or "")
    y_half, scaling = x.half(), torch.ones(1)
    assert "one type" in (lora.unsupported_lora_expand(x[None], [x[None]], adapters, y_half, scaling) or "")
