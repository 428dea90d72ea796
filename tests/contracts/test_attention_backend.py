"""Any attention backend against the reference, on ragged batches over a scrambled cache.

Without `--impl` those that a CPU runs by default are judged: C++ where there is a compiler, and SDPA. A backend need
not take every head size (`unsupported` says so); it is then judged on three that it takes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionShape,
    get_backend,
    kv_cache_shape,
    why_chosen,
)
from engine.config import ConfigError
from kernels import registry
from tests.differential.harness import make_metadata

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
SHIPPED = ("sdpa", "cpu")
"""The backend that a CPU gets by default."""
ROOT = Path(__file__).resolve().parents[2]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "impl" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--impl", default=None)
        metafunc.parametrize(
            "impl", [asked] if asked else [pytest.param(name, marks=absent(name)) for name in SHIPPED]
        )


def absent(name: str) -> list[pytest.MarkDecorator]:
    reason = registry.unavailable(name) if name in registry.BACKENDS else None
    return [pytest.mark.skip(reason=reason)] if reason else []


@cache
def head_dims(impl: str) -> tuple[int, ...]:
    """Three head sizes that this backend takes, small and odd ones first."""

    def takes(head_dim: int) -> bool:
        shape = AttentionShape(8, 4, head_dim, 16, torch.float32)
        try:
            get_backend(impl, "cpu", torch.float32, shape)
        except ConfigError as error:
            assert "cannot serve this model" in str(error), error
            return False
        return True

    return tuple(filter(takes, (8, 20, 32, 16, 48, 64, 80, 96, 128)))[:3]


@dataclass
class Workload:
    """A batch over a cache. Its repr is what a failing test prints."""

    block_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None
    rows: list[tuple[int, int]]
    """(start, num_tokens) of each row."""
    padding: int = 0
    num_layers: int = 2
    dtype: torch.dtype = torch.float32
    seed: int = 0

    @staticmethod
    def random(seed: int, head_dims: tuple[int, ...]) -> Workload:
        rng = random.Random(seed)
        decode = [(rng.randrange(90), 1) for _ in range(rng.randrange(6))]
        prefill = [
            (rng.choice((0, rng.randrange(60))), rng.randrange(2, 40)) for _ in range(rng.randrange(4))
        ]
        if seed % 10 == 0:
            prefill.append((rng.randrange(80), rng.randrange(250, 600)))
        if seed % 10 == 5:
            decode += [(rng.randrange(300, 700), 1) for _ in range(3)]
        num_heads, num_kv_heads = rng.choice([(1, 1), (4, 4), (8, 4), (6, 2), (8, 1)])
        return Workload(
            block_size=rng.choice([1, 4, 8, 16, 32]),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=rng.choice(head_dims),
            sliding_window=rng.choice([None, None, 1, 5, 16, 50]),
            rows=decode + prefill or [(0, 1)],
            padding=rng.choice([0, 0, 3]),
            seed=seed,
        )

    def build(self) -> Batch:
        """Queries, keys and values; a cache that already holds each row's earlier tokens."""
        generator = torch.Generator().manual_seed(self.seed)
        blocks_of = [-(-(start + num_tokens) // self.block_size) for start, num_tokens in self.rows]
        num_blocks = sum(blocks_of) + 3
        ids = list(range(1, num_blocks))
        random.Random(self.seed).shuffle(ids)
        rows = [([ids.pop() for _ in range(n)], *row) for n, row in zip(blocks_of, self.rows, strict=True)]

        shape = kv_cache_shape(num_blocks, self.num_layers, self.num_kv_heads, self.block_size, self.head_dim)
        cache = torch.randn(shape, generator=generator).to(self.dtype)
        cache[0] = 0  # the null block
        cache[ids] = float("nan")  # free blocks: one read of them and the result is not a number

        num_tokens = sum(num_tokens for _, num_tokens in self.rows) + self.padding
        heads = self.num_heads + 2 * self.num_kv_heads
        qkv = torch.randn(num_tokens, heads, self.head_dim, generator=generator).to(self.dtype)
        query, key, value = qkv.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        return Batch(
            self, query, key, value, cache, make_metadata(rows, self.block_size, padding=self.padding)
        )


@dataclass
class Batch:
    workload: Workload
    query: Tensor
    key: Tensor
    value: Tensor
    cache: Tensor
    metadata: AttentionMetadata

    def run(self, backend: AttentionBackend, layer: int = 1) -> Tensor:
        """Write and attend in one layer of a copy of the cache; the copy stays in `self.after`."""
        self.after = self.cache.clone()
        kv = self.after[:, layer]
        backend.build(self.metadata)
        backend.write(self.key, self.value, kv, self.metadata)
        return backend.attend(
            self.query,
            kv,
            self.metadata,
            scale=self.workload.head_dim**-0.5,
            sliding_window=self.workload.sliding_window,
        )


def backend_for(impl: str, dtype: torch.dtype = torch.float32) -> AttentionBackend:
    return get_backend(impl, "cpu", dtype)


def assert_agrees(workload: Workload, impl: str) -> None:
    batch = workload.build()
    expected = batch.run(get_backend("reference", "cpu", workload.dtype))
    cache_expected = batch.after
    actual = batch.run(backend_for(impl, workload.dtype))
    torch.testing.assert_close(
        batch.after,
        cache_expected,
        rtol=0,
        atol=0,
        equal_nan=True,
        msg=lambda text: f"cache: {text}\n{workload}",
    )
    tolerance = TOLERANCE[workload.dtype]
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=tolerance, msg=lambda text: f"{text}\n{workload}"
    )


@pytest.mark.parametrize("seed", range(200))
def test_attention_agrees_with_the_reference_on_a_random_ragged_batch(seed: int, impl: str) -> None:
    assert_agrees(Workload.random(seed, head_dims(impl)), impl)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_in_16_bit_stays_within_rounding_of_the_reference(dtype: torch.dtype, impl: str) -> None:
    for seed in range(10):
        workload = Workload.random(seed, head_dims(impl))
        workload.dtype = dtype
        assert_agrees(workload, impl)


def test_a_cache_of_another_type_than_the_queries_costs_only_its_rounding(impl: str) -> None:
    batch = Workload(4, 4, 2, head_dims(impl)[0], None, [(30, 1), (0, 25)]).build()
    batch.cache = batch.cache.bfloat16()
    expected = batch.run(get_backend("reference", "cpu", torch.bfloat16))
    actual = batch.run(backend_for(impl, torch.bfloat16))
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


def test_attention_decodes_256_rows_of_all_lengths(impl: str) -> None:
    rng = random.Random(0)
    assert_agrees(
        Workload(16, 4, 2, head_dims(impl)[0], None, [(rng.randrange(200), 1) for _ in range(256)]), impl
    )


def test_a_padding_slot_is_written_nowhere_and_its_output_is_zero(impl: str) -> None:
    batch = Workload(4, 4, 2, head_dims(impl)[0], None, [(5, 1), (0, 6)], padding=4).build()
    out = batch.run(backend_for(impl))
    untouched = torch.ones(batch.cache.shape[0] * 4, dtype=torch.bool)
    untouched[batch.metadata.slot_mapping[:7]] = False
    before, after = (cache[:, 1].permute(0, 3, 1, 2, 4).flatten(0, 1) for cache in (batch.cache, batch.after))
    torch.testing.assert_close(after[untouched], before[untouched], rtol=0, atol=0, equal_nan=True)
    assert (out[7:] == 0).all()


def test_the_null_block_and_the_other_layers_stay_as_they_were(impl: str) -> None:
    batch = Workload(4, 4, 2, head_dims(impl)[0], None, [(9, 1), (3, 10)], padding=2, num_layers=3).build()
    batch.run(backend_for(impl), layer=1)
    assert (batch.after[0] == 0).all()
    for layer in (0, 2):
        torch.testing.assert_close(
            batch.after[:, layer], batch.cache[:, layer], rtol=0, atol=0, equal_nan=True
        )


def test_the_cache_may_be_laid_out_layer_by_layer(impl: str) -> None:
    batch = Workload(4, 8, 2, head_dims(impl)[0], None, [(9, 1), (3, 10)], num_layers=2).build()
    expected = batch.run(get_backend("reference", "cpu", torch.float32))
    batch.cache = batch.cache.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(batch.run(backend_for(impl)), expected, rtol=0, atol=2e-5)


def test_layers_with_and_without_a_window_share_a_step(impl: str) -> None:
    batch = Workload(4, 4, 2, head_dims(impl)[0], None, [(30, 1), (0, 25)]).build()
    reference, backend = get_backend("reference", "cpu", torch.float32), backend_for(impl)
    backend.build(batch.metadata)
    for window in (None, 8, None, 3):
        kv = batch.cache[:, 0].clone()
        outputs = []
        for one in (reference, backend):
            one.write(batch.key, batch.value, kv, batch.metadata)
            outputs.append(one.attend(batch.query, kv, batch.metadata, scale=0.3, sliding_window=window))
        torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=2e-5)


def test_a_second_step_forgets_the_first(impl: str) -> None:
    backend = backend_for(impl)
    for seed in (1, 2, 3):
        batch = Workload(4, 4, 2, head_dims(impl)[0], None, [(10 * seed, 1), (seed, 7)], seed=seed).build()
        expected = batch.run(get_backend("reference", "cpu", torch.float32))
        torch.testing.assert_close(batch.run(backend), expected, rtol=0, atol=2e-5)


def test_a_row_computes_the_same_bits_alone_and_among_64_others(impl: str) -> None:
    rng = random.Random(1)
    decode = [(rng.randrange(400), 1) for _ in range(40)]
    prefill = [(rng.randrange(50), rng.randrange(2, 60)) for _ in range(24)]
    together = Workload(16, 8, 4, 32, None, decode + prefill).build()
    backend = backend_for(impl)
    expected = together.run(backend)
    starts = together.metadata.query_start_loc_cpu
    for row in range(0, 64, 3):
        own = slice(starts[row], starts[row + 1])
        start, num_tokens = together.workload.rows[row]
        blocks = together.metadata.block_table[row, : -(-(start + num_tokens) // 16)].tolist()
        metadata = make_metadata([(blocks, start, num_tokens)], 16)
        backend.build(metadata)
        alone = backend.attend(
            together.query[own], together.after[:, 1], metadata, scale=32**-0.5, sliding_window=None
        )
        assert torch.equal(alone, expected[own]), f"row {row}: start {start}, {num_tokens} tokens"


def test_an_unknown_backend_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(
        ConfigError, match="unknown attention backend 'flash'.*reference, sdpa, cpu, triton, cuda"
    ):
        get_backend("flash", "cpu", torch.float32)
    with pytest.raises(ConfigError, match="cannot be imported"):
        get_backend("no.such.module:Class", "cpu", torch.float32)


def test_every_shipped_backend_follows_the_protocol() -> None:
    for name in ("reference", "sdpa", None, *(name for name in SHIPPED if not absent(name))):
        assert isinstance(get_backend(name, "cpu", torch.float32), AttentionBackend)


# --- who serves what -------------------------------------------------------------------------------------------

needs_cpp = pytest.mark.skipif(bool(absent("cpu")), reason="no C++ kernels here")


def shape_of(head_dim: int = 32, heads: int = 4, kv_heads: int = 2) -> AttentionShape:
    return AttentionShape(heads, kv_heads, head_dim, 16, torch.float32)


@needs_cpp
def test_a_cpu_is_served_by_cpp_or_else_by_sdpa() -> None:
    def chosen(shape: AttentionShape) -> str:
        return get_backend(None, "cpu", torch.float32, shape).name

    assert chosen(shape_of(head_dim=32)) == chosen(shape_of(head_dim=128, heads=8, kv_heads=1)) == "cpu"
    assert chosen(shape_of(head_dim=20)) == chosen(shape_of(heads=64, kv_heads=1)) == "cpu"
    assert get_backend(None, "cpu", torch.float64, shape_of()).name == "sdpa"


@needs_cpp
def test_a_cache_that_is_not_taken_is_refused_with_those_that_take_it() -> None:
    with pytest.raises(ConfigError) as error:
        get_backend("cpu", "cpu", torch.float64, shape_of())
    told, reason = str(error.value), "a cache of float64; supported: float32, float16, bfloat16"
    assert told.startswith(f"attention backend 'cpu' cannot serve this model: {reason}")
    assert told.endswith("; these can: sdpa, reference")


@needs_cpp
def test_the_choice_names_the_faster_backends_that_cannot_serve_and_why() -> None:
    device = torch.device("cpu")
    why = why_chosen(None, device, torch.float32, shape_of())
    assert why == "the fastest that serves this model on cpu, then sdpa, reference"
    wide = why_chosen(None, device, torch.float64, shape_of())
    assert wide.startswith(
        "the fastest that serves this model on cpu, then reference; cpu cannot: a cache of float64"
    )
    assert why_chosen("sdpa", device, torch.float32, shape_of()) == "as asked"


def forms_of(backend: object) -> tuple[str, str]:
    """The modules of the functions that attend and write."""
    return backend._attend.__module__, backend._write.__module__


@needs_cpp
@pytest.mark.parametrize(
    ("forced", "attends", "writes"),
    [
        ({"paged_attention": "reference"}, "kernels.reference.attention", "kernels.reference.kv_write"),
        ({"*": "reference"}, "kernels.reference.attention", "kernels.reference.kv_write"),
        ({"reshape_and_cache": "reference"}, "kernels.cpu.attention", "kernels.reference.kv_write"),
        ({"rms_norm": "reference"}, "kernels.cpu.attention", "kernels.cpu.kv_write"),
    ],
)
def test_prep_kernels_chooses_the_form_of_attention_and_kv_write(
    forced: dict[str, str], attends: str, writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_forced", forced)
    backend = get_backend(None, "cpu", torch.float32, shape_of())
    assert forms_of(backend) == (attends, writes)
    why = why_chosen(None, torch.device("cpu"), torch.float32, shape_of())
    assert (why == "as PREP_KERNELS asks") == (attends == "kernels.reference.attention")
    assert get_backend("sdpa", "cpu", torch.float32, shape_of()).name == "sdpa"


@needs_cpp
def test_the_cpp_backend_is_refused_on_another_device() -> None:
    """Its kernels take addresses: one of a GPU would end the process."""
    with pytest.raises(ConfigError, match="cannot serve this model: it runs on a CPU, not on meta"):
        get_backend("cpu", "meta", torch.float32, shape_of())


# --- the kernels of a GPU, in slow motion ------------------------------------------------------------------------

ANSWER = """
import json, sys
from engine import LLM, SamplingParams
backend, prompts = sys.argv[1], json.loads(sys.argv[2])
with LLM("shop", attention_backend=backend, dtype="float32", max_model_len=64, device="cpu") as llm:
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0, max_tokens=3, ignore_eos=True),
        use_tqdm=False,
    )
print(json.dumps([output.outputs[0].token_ids for output in outputs]))
"""
PROMPTS = [[7, 301, 12, 45, 9], [1000, 3]]


def answer(backend: str, **environment: str) -> list[list[int]]:
    finished = subprocess.run(
        [sys.executable, "-c", ANSWER, backend, json.dumps(PROMPTS)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    if finished.returncode != 0 and "is not available here" in finished.stderr:
        pytest.skip(finished.stderr.splitlines()[-1])
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.slow
def test_triton_in_its_interpreter_says_what_the_reference_says() -> None:
    pytest.importorskip("triton", reason="Triton has wheels for Linux only")
    assert answer("triton", TRITON_INTERPRET="1") == answer("reference")


@pytest.mark.slow
def test_cuda_on_its_host_shim_says_what_the_reference_says() -> None:
    assert answer("cuda") == answer("reference")
