"""The walk through the block table ends where paged attention ends, and says on the way what each page did."""

from __future__ import annotations

import math
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.debugger.kernel_walk import page_walk
from app.debugger.kernel_walk.page_walk import pages_seen
from kernels.attention_batch import AttentionBatch
from kernels.reference.attention import paged_attention
from kernels.reference.kv_write import reshape_and_cache

TOLERANCE = 2e-6
SOURCE = Path(page_walk.__file__)


@dataclass
class Case:
    """A query, a cache full of other numbers, and a table that says which of them are its own."""

    query: Tensor
    kv: Tensor
    table: list[int]
    seq_len: int
    window: int | None
    kv_scale: Tensor | None = None
    scale: float = 0.3

    def walk(self, module: Any = page_walk) -> Any:
        return module.walk_pages(
            self.query,
            self.kv,
            self.table,
            self.seq_len,
            scale=self.scale,
            sliding_window=self.window,
            kv_scale=self.kv_scale,
        )

    def attend(self) -> Tensor:
        """The same query by the definition."""
        return paged_attention(
            self.query[None],
            self.kv,
            AttentionBatch(
                *(torch.tensor(x, dtype=torch.int32) for x in ([0, 1], [self.seq_len], [self.table]))
            ),
            scale=self.scale,
            sliding_window=self.window,
            kv_scale=self.kv_scale,
        )[0]


def make_case(
    seed: int = 0,
    *,
    kv_heads: int = 2,
    group: int = 2,
    head_dim: int = 8,
    block_size: int = 4,
    seq_len: int = 19,
    window: int | None = None,
    spread: float = 3.0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    rng = torch.Generator().manual_seed(seed)
    num_pages = -(-seq_len // block_size)
    num_blocks = num_pages + 5
    table = (torch.randperm(num_blocks - 1, generator=rng)[:num_pages] + 1).tolist()
    shape = (num_blocks, 2, kv_heads, block_size, head_dim)
    numbers = torch.randn(shape, generator=rng) * spread
    query = torch.randn(kv_heads * group, head_dim, generator=rng) * spread
    if dtype == torch.float32:
        return Case(query, numbers, table, seq_len, window)
    kv = torch.zeros(shape, dtype=dtype)
    per_layer = dtype == torch.float8_e4m3fn
    kv_scale = torch.tensor([0.5, 2.0]) if per_layer else torch.zeros(num_blocks, 2, kv_heads, block_size)
    key, value = numbers.permute(1, 0, 3, 2, 4).flatten(1, 2)
    reshape_and_cache(key, value, kv, torch.arange(num_blocks * block_size), kv_scale)
    return Case(query, kv, table, seq_len, window, kv_scale)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    head_dim=st.sampled_from([2, 8, 32]),
    block_size=st.sampled_from([1, 3, 16]),
    seq_len=st.integers(1, 70),
    window=st.none() | st.integers(1, 80),
)
def test_the_walk_ends_where_paged_attention_ends(seed: int, **sizes: Any) -> None:
    case = make_case(
        seed, spread=1.0, **sizes
    )  # larger scores: rounding alone exceeds any useful bound now and then
    torch.testing.assert_close(case.walk().output, case.attend(), rtol=TOLERANCE * 2, atol=TOLERANCE * 2)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_quantised_cache_is_read_with_its_scales(dtype: torch.dtype) -> None:
    case = make_case(dtype=dtype)
    torch.testing.assert_close(case.walk().output, case.attend(), rtol=TOLERANCE, atol=TOLERANCE)


def test_scores_of_hundreds_do_not_overflow() -> None:
    case = make_case(spread=40.0)
    walk = case.walk()
    assert walk.visits[0].scores.abs().max() > 500
    torch.testing.assert_close(walk.output, case.attend(), rtol=1e-5, atol=1e-5)


def test_every_number_on_the_way_is_what_the_prefix_alone_gives() -> None:
    case = make_case(seed=3)
    walk = case.walk()
    seen = torch.empty(case.query.shape[0], 0)
    before = torch.full((case.query.shape[0],), -math.inf)
    for visit in walk.visits:
        seen = torch.cat((seen, visit.scores), dim=1)
        top = seen.amax(1)
        torch.testing.assert_close(visit.m, top)
        torch.testing.assert_close(visit.mass, (seen - top[:, None]).exp().sum(1))
        torch.testing.assert_close(visit.rescale, (before - top).exp())
        torch.testing.assert_close(visit.score_max, visit.scores.amax(1))
        before = top
    shares = walk.shares()
    torch.testing.assert_close(shares.sum(0), torch.ones(case.query.shape[0]))
    probabilities = seen.softmax(1)
    bounds = [visit.page.num_tokens for visit in walk.visits]
    expected = torch.stack([part.sum(1) for part in probabilities.split(bounds, dim=1)])
    torch.testing.assert_close(shares, expected)


def test_the_pages_of_a_window_begin_with_the_one_that_holds_its_oldest_token() -> None:
    pages = list(pages_seen([0, 0, 5, 6, 7], seq_len=19, block_size=4, sliding_window=9))
    assert [(page.page, page.block_id, page.first, page.end) for page in pages] == [
        (2, 5, 10, 12),
        (3, 6, 12, 16),
        (4, 7, 16, 19),
    ]


def test_bytes_read_are_those_of_the_tokens_that_are_seen() -> None:
    assert make_case().walk().bytes_read == 19 * 2 * 2 * 8 * 4
    assert make_case(window=5).walk().bytes_read == 5 * 2 * 2 * 8 * 4
    # int8: a byte a number, and a scale of 4 bytes for the key and for the value of every head
    assert make_case(dtype=torch.int8).walk().bytes_read == 19 * 2 * 2 * (8 + 4)
    assert make_case(dtype=torch.float8_e4m3fn).walk().bytes_read == 19 * 2 * 2 * 8


MISTAKES = {
    "the sum is not rescaled": ("mass = mass * rescale + added", "mass = mass + added"),
    "the output is not rescaled": ("acc = acc * rescale[:, None] +", "acc = acc +"),
    "rescaled the wrong way round": ("torch.exp(m - new_m)", "torch.exp(new_m - m).nan_to_num(0, 0, 0)"),
    "the last page read to its end": ("min(begin + block_size, seq_len)", "begin + block_size"),
    "no window": ("max(begin, oldest)", "begin"),
    "a query head reads the wrong kv head": (
        "pair.repeat_interleave(heads // kv.shape[2], dim=1)",
        "pair.repeat(1, heads // kv.shape[2], 1, 1)",
    ),
    "pages in the order of their block ids": ("block_table[page], max", "sorted(block_table)[page], max"),
    "not divided at the end": ("acc / mass[:, None]", "acc"),
    "unscaled scores": ("query, key) * scale", "query, key)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_plausible_mistake_gives_another_result(mistake: str) -> None:
    right, wrong = MISTAKES[mistake]
    source = SOURCE.read_text()
    assert source.count(right) == 1, f"{right!r} is not in {SOURCE.name} exactly once"
    mutant = types.ModuleType("page_walk_mutant")
    sys.modules[mutant.__name__] = mutant  # dataclasses look their module up
    exec(compile(source.replace(right, wrong), str(SOURCE), "exec"), mutant.__dict__)
    case = make_case(seed=1, window=10, spread=1.0)
    assert torch.allclose(case.walk().output, case.attend(), atol=TOLERANCE)
    assert not torch.allclose(case.walk(mutant).output, case.attend(), atol=1e-3)
