"""Low-rank adapters, many in one batch: y += scaling * (x @ A.T) @ B.T, with A and B chosen per token.

Between the two halves lies a vector of only `rank` numbers per token. Source: LoRA (Hu et al. 2021); for many
adapters in one launch Punica (Chen et al. 2023) and S-LoRA (Sheng et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from kernels.reference.precision import wide


def lora_shrink(x: Tensor, lora_a: Tensor, token_adapter: Tensor) -> Tensor:
    num_slices, _, rank, _ = lora_a.shape
    shrunk = wide(x).new_zeros(num_slices, x.shape[0], rank)
    for adapter, tokens in _tokens_by_adapter(token_adapter):
        for part in range(num_slices):
            shrunk[part, tokens] = wide(x[tokens]) @ wide(lora_a[part, adapter]).T
    return shrunk


def lora_expand(
    shrunk: Tensor, lora_b: Sequence[Tensor], token_adapter: Tensor, y: Tensor, scaling: Tensor
) -> None:
    for adapter, tokens in _tokens_by_adapter(token_adapter):
        start = 0
        for part, matrices in enumerate(lora_b):
            end = start + matrices.shape[1]
            added = scaling[adapter] * (shrunk[part, tokens] @ matrices[adapter].to(shrunk.dtype).T)
            y[tokens, start:end] = (wide(y[tokens, start:end]) + added).to(y.dtype)
            start = end


def _tokens_by_adapter(token_adapter: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each adapter in use with the indices of its tokens."""
    for adapter in token_adapter.unique().tolist():
        if adapter >= 0:
            yield adapter, (token_adapter == adapter).nonzero().flatten()
