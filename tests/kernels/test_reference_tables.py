"""LoRA, experts, penalties, log-probabilities and bitmasks: small cases that can be checked by hand."""

from __future__ import annotations

import torch

from kernels.reference.bitmask import apply_token_bitmask
from kernels.reference.logprobs import gather_logprobs
from kernels.reference.lora import lora_expand, lora_shrink
from kernels.reference.moe import grouped_linear
from kernels.reference.penalties import apply_penalties


def test_lora_in_a_batch_is_each_token_s_own_two_products() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 8, generator=generator), torch.randn(4, 5, generator=generator)
    lora_a = torch.randn(2, 3, 2, 8, generator=generator)
    lora_b = [torch.randn(3, columns, 2, generator=generator) for columns in (3, 2)]
    adapters, scaling = torch.tensor([2, -1, 0, 2], dtype=torch.int32), torch.tensor([1.0, 2.0, 0.5])
    want = y.clone()
    for token, adapter in ((0, 2), (2, 0), (3, 2)):
        for part, columns in ((0, slice(0, 3)), (1, slice(3, 5))):
            delta = lora_b[part][adapter] @ lora_a[part, adapter] @ x[token]
            want[token, columns] += scaling[adapter] * delta
    untouched = y[1].clone()
    shrunk = lora_shrink(x, lora_a, adapters)
    lora_expand(shrunk, lora_b, adapters, y, scaling)
    torch.testing.assert_close(y, want)
    assert torch.equal(y[1], untouched)
    assert not shrunk[:, 1].any()


def test_each_group_of_rows_has_its_own_matrix_and_rows_of_no_group_are_zero() -> None:
    x = torch.ones(5, 2)
    weight = torch.tensor([[[1.0, 1.0]], [[9.0, 9.0]], [[0.5, 0.0]]])
    out = grouped_linear(x, weight, torch.tensor([2, 2, 4], dtype=torch.int32))
    assert out.flatten().tolist() == [2.0, 2.0, 0.5, 0.5, 0.0]


def test_penalties_in_their_order() -> None:
    logits = torch.tensor([[3.0, -3.0, 3.0, -3.0, 1.0]])
    in_prompt = torch.tensor([[True, True, False, False, False]])
    counts = torch.tensor([[0, 0, 2, 1, 0]], dtype=torch.int32)
    apply_penalties(logits, in_prompt, counts, torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25]))
    assert logits.tolist() == [[1.5, -6.0, 1.5 - 0.5 - 0.5, -6.0 - 0.25 - 0.5, 1.0]]


def test_equal_logits_do_not_push_a_token_down() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]]).repeat(4, 1)
    logprobs, ranks = gather_logprobs(logits, torch.arange(4))
    assert ranks.tolist() == [3, 1, 1, 4]
    torch.testing.assert_close(logprobs.exp().sum(), torch.tensor(1.0))


def test_bits_are_counted_from_the_lowest_and_those_past_the_vocabulary_ignored() -> None:
    logits = torch.zeros(2, 34)
    apply_token_bitmask(logits, torch.tensor([[0b101, -2], [-(2**31), 1]], dtype=torch.int32))
    assert (logits[0] == 0).nonzero().flatten().tolist() == [0, 2, 33]
    assert (logits[1] == 0).nonzero().flatten().tolist() == [31, 32]
