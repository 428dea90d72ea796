"""Recording kernel calls and replaying them without Python."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import Tensor

from kernels import ops
from kernels.cpu import build

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from kernels.cpu.graph import CPUGraph
from kernels.cpu.memory import Arena, ArenaFull, allocating_from, empty

NORM, WEIGHT = torch.rand(64), ops.pack_weight(torch.randn(128, 64))


def block(x: Tensor) -> Tensor:
    """Three calls: what a step is made of."""
    return ops.silu_and_mul(ops.linear(ops.rms_norm(x, NORM, 1e-6), WEIGHT))


def test_a_replay_computes_on_what_lies_in_the_inputs_now() -> None:
    x = torch.randn(5, 64)
    graph, result = CPUGraph.record(lambda: block(x), Arena(1 << 20))
    assert graph.num_calls == 3
    assert torch.equal(result, block(x))
    for _ in range(3):
        x.copy_(torch.randn(5, 64))
        expected = block(x)
        assert not torch.equal(result, expected)
        graph.replay()
        assert torch.equal(result, expected)


def test_every_kernel_of_a_model_is_recorded() -> None:
    ids, positions = torch.tensor([3, 1]), torch.tensor([0, 7])
    table, angles = torch.randn(9, 64), torch.rand(9, 16)
    kv, slots = torch.zeros(3, 2, 2, 4, 32), torch.tensor([4, 8])
    starts, lens = torch.tensor([0, 1, 2]).int(), torch.tensor([1, 1]).int()
    batch = ops.AttentionBatch(starts, lens, torch.tensor([[1], [2]]).int())

    def step() -> Tensor:
        hidden = ops.embedding(table, ids)
        normed, residual = ops.fused_add_rms_norm(hidden, hidden, NORM, 1e-6)
        heads = ops.linear(normed, WEIGHT).view(2, 4, 32)
        cos, sin = ops.embedding(angles.cos(), positions), ops.embedding(angles.sin(), positions)
        turned = ops.rotary_embedding(heads, cos, sin)
        ops.reshape_and_cache(turned[:, :2], heads[:, 2:], kv, slots)
        return ops.paged_attention(turned[:, 2:], kv, batch, scale=0.2)

    cosines, sines = angles.cos(), angles.sin()
    angles.cos, angles.sin = lambda: cosines, lambda: sines  # torch's own are not recorded
    graph, result = CPUGraph.record(step, Arena(1 << 20))
    assert graph.num_calls == 8
    ids.copy_(torch.tensor([8, 2])), positions.copy_(torch.tensor([5, 1]))
    kv.zero_()
    graph.replay()
    replayed, cache = result.clone(), kv.clone()
    assert torch.equal(step(), replayed) and torch.equal(kv, cache)


def test_two_graphs_can_share_an_arena_if_they_take_turns() -> None:
    arena = Arena(1 << 20)
    inputs = [torch.randn(rows, 64) for rows in (1, 9)]
    graphs = [CPUGraph.record(lambda x=x: block(x), arena) for x in inputs]
    for _ in range(2):
        for x, (graph, result) in zip(inputs, graphs, strict=True):
            x.copy_(torch.randn(x.shape))
            graph.replay()
            assert torch.equal(result, block(x))


def test_a_torch_operation_is_not_recorded() -> None:
    """So the caller must compare a replay with an ordinary run."""
    x = torch.randn(5, 64)
    graph, result = CPUGraph.record(lambda: block(x + 1), Arena(1 << 20))
    x.copy_(torch.randn(5, 64))
    graph.replay()
    assert not torch.equal(result, block(x + 1))


def test_only_the_thread_that_records_is_recorded() -> None:
    x, others = torch.randn(5, 64), []

    def both() -> Tensor:
        thread = threading.Thread(target=lambda: others.append(block(x)))
        thread.start()
        thread.join()
        return block(x)

    arena = Arena(1 << 20)
    graph, result = CPUGraph.record(both, arena)
    assert graph.num_calls == 3
    begin, end = arena._memory.data_ptr(), arena._memory.data_ptr() + len(arena._memory)
    assert begin <= result.data_ptr() < end
    assert not begin <= others[0].data_ptr() < end


def test_a_failure_while_recording_ends_the_recording() -> None:
    x = torch.randn(5, 64)

    def fails() -> Tensor:
        block(x)
        raise ZeroDivisionError

    arena = Arena(1 << 20)
    with pytest.raises(ZeroDivisionError):
        CPUGraph.record(fails, arena)
    used = arena._used
    block(x)
    assert arena._used == used, "results still come from the arena"
    graph, result = CPUGraph.record(lambda: block(x), arena)
    assert graph.num_calls == 3 and torch.equal(result, block(x))


def test_an_arena_that_is_too_small_says_so_and_is_not_overrun() -> None:
    x = torch.randn(5, 64)
    needed = 5 * (64 + 128 + 64) * 4
    with pytest.raises(ArenaFull, match="too small"):
        CPUGraph.record(lambda: block(x), Arena(needed - 65))  # up to 64 more, to begin at a line
    _, result = CPUGraph.record(lambda: block(x), Arena(needed + 3 * 64))
    assert torch.equal(result, block(x))


def test_pieces_of_an_arena_are_aligned_and_do_not_overlap() -> None:
    arena, pieces = Arena(1 << 16), []
    with allocating_from(arena):
        for shape, dtype in (
            ((3, 5), torch.float16),
            ((0, 7), torch.float32),
            ((1,), torch.int8),
            ((9, 9), torch.float64),
        ):
            pieces.append(empty(shape, dtype))
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % 64 == 0 and piece.is_contiguous()
        piece.fill_(number)
    assert all((piece == number).all() for number, piece in enumerate(pieces))
    with allocating_from(arena):
        assert empty((2,), torch.float32).data_ptr() == pieces[0].data_ptr(), (
            "a new recording begins at the start"
        )


@pytest.mark.slow
def test_a_graph_keeps_its_arena_alive_and_lets_it_go() -> None:
    x = torch.randn(2, 64)
    graph, result = CPUGraph.record(lambda: block(x), Arena(1 << 20))
    alive = weakref.ref(graph._arena)
    gc.collect()
    graph.replay()
    assert alive() is not None
    del graph, result
    gc.collect()
    assert alive() is None
