"""Memory questions and experiments against oracles and a live engine."""

from __future__ import annotations

from random import Random

import pytest

from quizzes.experiments.memory.allocators import Buddy, Contiguous, Paged
from quizzes.oracles import memory as oracle
from tests.quizzes.runs import runner

run = runner("memory")


@pytest.mark.parametrize("make", [lambda: Contiguous(512), lambda: Buddy(512), lambda: Contiguous(512, 64)])
@pytest.mark.parametrize("seed", range(5))
def test_contiguous_runs_never_overlap_and_stay_inside(make, seed: int) -> None:
    memory, rng, alive = make(), Random(seed), []
    for index in range(200):
        if alive and rng.random() < 0.45:
            memory.free(alive.pop(rng.randrange(len(alive))))
        elif memory.admit(str(index), 1, rng.randrange(1, 65)):
            alive.append(str(index))
        ends = [(start, start + size) for start, size in sorted(memory.runs.values())]
        assert all(first[1] <= second[0] for first, second in zip(ends, ends[1:], strict=False))
        assert not ends or ends[-1][1] <= 512


def test_a_buddy_lies_at_a_multiple_of_its_size() -> None:
    memory, rng = Buddy(1024), Random(1)
    for index in range(40):
        memory.admit(str(index), 1, rng.randrange(1, 100))
    assert memory.runs and all(start % size == 0 for start, size in memory.runs.values())


def test_first_fit_takes_the_lowest_hole_that_is_long_enough() -> None:
    memory = Contiguous(100)
    for name, size in (("a", 30), ("b", 10), ("c", 40)):
        assert memory.admit(name, 1, size)
    memory.free("b")
    assert memory.admit("d", 1, 15) and memory.runs["d"] == (80, 15)
    assert memory.admit("e", 1, 10) and memory.runs["e"] == (30, 10)


def test_a_paged_pool_never_waits_for_a_hole() -> None:
    for seed in range(8):
        rng = Random(seed)
        prompts = [rng.randrange(1, 150) for _ in range(20)]
        outputs = [rng.randrange(1, 100) for _ in range(20)]
        race = run("allocator_race", prompts=prompts, outputs=outputs, slots=1024)
        assert race.scattered[3] == 0
        assert race.waste[3] < race.waste[0]


def test_waste_splits_into_reserve_internal_and_external() -> None:
    """Two requests of 40 + 20 - 1 = 59 slots, one at a time: the second waits through the 20 steps of the first."""
    race = run("allocator_race", prompts=[40, 40], outputs=[20, 20], slots=80, max_len=80, block_size=8)
    sizes = {"reserve_max": 80, "buddy": 64, "first_fit": 59}
    for index, size in enumerate(sizes.values()):
        later = [59 - (40 + step) for step in range(20)]  # tokens still to come in each of the steps
        assert race.reserve[index] == pytest.approx(sum(later) / (20 * 80))
        assert race.internal[index] == pytest.approx((size - 59) / 80)
        assert race.external[index] == 0, "80 slots never hold both"


@pytest.mark.parametrize("seed", range(6))
def test_the_parts_of_waste_never_exceed_what_is_idle(seed: int) -> None:
    rng = Random(seed)
    prompts = [rng.randrange(1, 150) for _ in range(20)]
    outputs = [rng.randrange(1, 100) for _ in range(20)]
    race = run("allocator_race", prompts=prompts, outputs=outputs, slots=1024, block_size=16)
    for index in range(4):
        parts = race.reserve[index] + race.internal[index] + race.external[index]
        assert parts <= race.idle[index] + 1e-9
        assert (race.external[index] > 0) == (race.scattered[index] > 0)
    assert race.internal[2] == race.external[3] == 0
    assert race.internal[3] < race.internal[0]


def test_the_paged_pool_frees_all_blocks() -> None:
    memory = Paged(128, 16)
    assert memory.admit("a", 40, 60) and memory.taken == 48
    assert all(memory.grow("a") for _ in range(9)) and memory.taken == 64
    memory.free("a")
    assert memory.taken == 0


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [("llama-2-7b", 524_288), ("llama-3-8b", 131_072), ("llama-3-70b", 327_680), ("deepseek-v3", 70_272)],
)
def test_kv_bytes_of_known_models(model: str, bytes_per_token: int) -> None:
    assert run("model_kv", model=model).per_token == bytes_per_token


def test_kv_heads_are_divided_until_each_gpu_has_one() -> None:
    assert [run("model_kv", model="llama-3-8b", tp=tp).copies for tp in (1, 4, 8, 16)] == [1, 1, 1, 2]
    assert run("model_kv", model="deepseek-v3", tp=8).copies == 8


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8_per_token_head"])
def test_a_live_pool_has_the_bytes_of_the_formula(kv_dtype: str) -> None:
    pool = run("real_pool", kv_dtype=kv_dtype, num_blocks=32)
    assert pool.pool_bytes == oracle.pool_bytes(32, 16, kv_dtype) == pool.block_bytes * pool.num_blocks
    assert pool.usable_tokens == 31 * 16


def test_the_pool_is_the_same_memory_after_serving() -> None:
    life = run("pool_lifetime", requests=2, output=4, num_blocks=32)
    assert life.same_memory and life.bytes_before == life.bytes_after
    assert life.used_before == life.used_after == 0 < life.peak_used


def test_a_window_bounds_what_a_request_holds() -> None:
    short, long = (run("window_blocks", prompt=n, window=100) for n in (400, 800))
    assert short.peak_blocks == long.peak_blocks < short.peak_blocks_full < long.peak_blocks_full


def test_a_block_table_needs_distinct_blocks_and_an_existing_token() -> None:
    with pytest.raises(ValueError, match="names a block twice"):
        run("block_table", free_order=[3, 3, 4, 5])
    with pytest.raises(ValueError, match="does not exist"):
        run("block_table", tokens=20, token=20)


def test_an_allocator_race_says_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="more than max_len"):
        run("allocator_race", prompts=[100], outputs=[100], max_len=150)
    with pytest.raises(ValueError, match="one of each per request"):
        run("allocator_race", prompts=[100], outputs=[100, 3])
