"""Prefill whose tiles come through tensor descriptors, as on Hopper, in the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.check.draw import Draw
from kernels.operations.cache import _attention
from kernels.reference.attention import paged_attention as reference
from kernels.triton_ops import unified_attention as prefill
from kernels.triton_ops.attention import paged_attention


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("window", [None, 20])
def test_tiles_from_descriptors_give_the_bits_of_tiles_from_pointers(
    dtype: torch.dtype, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[Any] = []
    make = prefill.cache_rows

    def watch(query: Tensor, kv: Tensor, config: dict[str, int]) -> Any:
        described.append(make(query, kv, config))
        return described[-1]

    case = _attention(
        Draw(3, dtype, "tiny"), "prefill", [(40, 40), (9, 70), (33, 130)], 2, 2, 32, 64, window=window
    )
    from_pointers = paged_attention(*case.args, **case.kwargs)
    monkeypatch.setattr(prefill, "cache_rows", watch)
    monkeypatch.setattr(prefill, "has_tma", lambda kv: True)
    from_descriptors = paged_attention(*case.args, **case.kwargs)
    assert described[0] is not None
    assert torch.equal(from_descriptors, from_pointers)
    torch.testing.assert_close(from_descriptors, reference(*case.args, **case.kwargs), rtol=0.01, atol=0.01)
