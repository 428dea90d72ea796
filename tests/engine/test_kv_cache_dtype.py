"""A KV cache in 8 bits: what a block holds, how much is lost, and what follows its scales around (E32, E35)."""

from __future__ import annotations

import pytest
import torch

from engine import LLM, SamplingParams
from engine.attention.backend import AttentionShape, get_backend
from engine.config import ConfigError
from engine.quant.kv_cache import KVCacheLayout, cache_dtype
from engine.zoo.shop import open_shop
from kernels import ops
from tests.differential.harness import make_metadata

LAYERS, KV_HEADS, BLOCK, HEAD_DIM = 2, 2, 4, 32
QUESTIONS = ["What do you recommend?", "How much is your staff pick?", "Hello", "How much does it cost?"]


def cache(name: str, num_blocks: int = 6):
    layout = KVCacheLayout(LAYERS, KV_HEADS, BLOCK, HEAD_DIM, cache_dtype(name, "float32"))
    return layout, layout.over(torch.zeros(num_blocks * layout.bytes_per_block, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("name", "bytes_per_value", "scale_bytes"),
    [
        ("auto", 4, 0),
        ("bfloat16", 2, 0),
        ("fp8", 1, 0),
        ("fp8_e4m3", 1, 0),
        ("fp8_e5m2", 1, 0),
        ("int8_per_token_head", 1, 4),
    ],
)
def test_a_block_is_as_large_as_its_values_and_scales(
    name: str, bytes_per_value: int, scale_bytes: int
) -> None:
    layout, made = cache(name)
    heads = LAYERS * 2 * KV_HEADS * BLOCK
    assert layout.bytes_per_block == heads * (HEAD_DIM * bytes_per_value + scale_bytes)
    assert made.blocks.shape == (6, layout.bytes_per_block)
    assert made.kv.data_ptr() == made.blocks.data_ptr()


def stored_error(name: str, key: torch.Tensor) -> float:
    """Mean distance of what is read back from what was written, relative to what was written."""
    _, made = cache(name)
    slots = torch.arange(BLOCK, BLOCK + len(key))
    kv, scale = made.kv[:, 1], None if made.scales is None else made.scales[1]
    ops.reshape_and_cache(key, key, kv, slots, scale)
    pages = kv[1:3, 0].float()
    if name.startswith("int8"):
        pages = pages * scale[1:3, 0, :, :, None]
    back = pages.transpose(1, 2).reshape(-1, KV_HEADS, HEAD_DIM)[: len(key)]
    return float((back - key).norm() / key.norm())


def test_e5m2_has_e4m3s_bytes_twice_its_error_and_a_wider_range() -> None:
    torch.manual_seed(0)
    key = torch.randn(6, KV_HEADS, HEAD_DIM)
    assert cache("fp8_e5m2")[0].bytes_per_block == cache("fp8_e4m3")[0].bytes_per_block
    assert 1.8 < stored_error("fp8_e5m2", key) / stored_error("fp8_e4m3", key) < 2.2
    large = key * 1000  # beyond 448, which saturates e4m3, and within 57344
    assert stored_error("fp8_e5m2", large) < 0.08 < 0.5 < stored_error("fp8_e4m3", large)


def test_an_e5m2_cache_is_served_by_the_reference_and_answers() -> None:
    with LLM("shop", kv_cache_dtype="fp8_e5m2", num_gpu_blocks_override=64) as llm:
        assert llm.llm_engine.engine_core.executor.worker.backend.name == "reference"
        [answer] = llm.generate(["Hello"], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert len(answer.outputs[0].token_ids) > 0


def test_per_token_head_scales_survive_an_outlier_that_spoils_a_fixed_scale() -> None:
    torch.manual_seed(0)
    key = torch.randn(6, KV_HEADS, HEAD_DIM)
    assert stored_error("int8_per_token_head", key) < 0.01 < stored_error("fp8", key) < 0.04
    small = key * 1e-4  # below what e4m3 can hold with a scale of 1
    assert stored_error("int8_per_token_head", small) < 0.01
    assert stored_error("fp8", small) > 0.5
    large = key * 1000  # beyond 448 it saturates
    assert stored_error("int8_per_token_head", large) < 0.01
    assert stored_error("fp8", large) > 0.3


@pytest.mark.parametrize("name", ["fp8", "int8_per_token_head"])
def test_a_copied_block_reads_the_same_scales_included(name: str) -> None:
    """The needle: attention over moved blocks gives the bits it gave before they were moved."""
    torch.manual_seed(1)
    _, made = cache(name, num_blocks=12)
    shape = AttentionShape(4, KV_HEADS, HEAD_DIM, BLOCK, torch.float32)
    backend = get_backend(None, "cpu", made.kv.dtype, shape)
    keys, query = torch.randn(10, KV_HEADS, HEAD_DIM), torch.randn(1, 4, HEAD_DIM)
    write = make_metadata([([1, 2, 3], 0, 10)], BLOCK)
    backend.build(write)
    backend.write(keys, keys * 2, made.kv[:, 0], write, made.scales[0])

    def attend(table: list[int]) -> torch.Tensor:
        metadata = make_metadata([(table, 9, 1)], BLOCK)
        backend.build(metadata)
        return backend.attend(
            query, made.kv[:, 0], metadata, scale=0.2, sliding_window=None, kv_scale=made.scales[0]
        )

    before = attend([1, 2, 3])
    ops.copy_blocks(made.blocks, made.blocks, torch.tensor([[1, 7], [2, 5], [3, 9]]))
    made.blocks[1:4] = 0x55
    assert torch.equal(attend([7, 5, 9]), before)


@pytest.mark.parametrize("name", ["fp8", "int8_per_token_head"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_shop_answers_the_same_with_a_cache_of_8_bits(name: str, backend: str) -> None:
    system = open_shop().system
    chats = [[{"role": "system", "content": system}, {"role": "user", "content": q}] for q in QUESTIONS]
    params = SamplingParams(max_tokens=24, temperature=0)
    answers = {}
    for dtype in ("auto", name):
        with LLM(
            "shop",
            kv_cache_dtype=dtype,
            attention_backend=backend,
            max_model_len=768,
            num_gpu_blocks_override=200,
        ) as llm:
            answers[dtype] = [output.outputs[0].text for output in llm.chat(chats, params)]
    assert answers[name] == answers["auto"]


def test_a_request_is_the_same_alone_in_a_batch_and_in_chunks() -> None:
    prompts = [[7 * i % 900 + 5 for i in range(length)] for length in (5, 33, 70, 18)]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    settings = {"kv_cache_dtype": "int8_per_token_head", "max_model_len": 128, "num_gpu_blocks_override": 60}
    with LLM("shop", **settings) as llm:
        alone = [llm.generate([prompt], params)[0].outputs[0].token_ids for prompt in prompts]
    with LLM("shop", **settings, max_num_batched_tokens=9, max_num_seqs=4, enforce_eager=True) as llm:
        together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    assert together == alone


def test_more_fits_into_the_same_memory() -> None:
    blocks = {}
    for name in ("auto", "fp8", "int8_per_token_head"):
        with LLM("shop", kv_cache_dtype=name, kv_cache_memory_bytes=40 << 20, max_model_len=256) as llm:
            blocks[name] = llm.llm_engine.engine_core.config.cache.num_blocks
    assert blocks["fp8"] // blocks["auto"] == 4
    assert blocks["int8_per_token_head"] / blocks["auto"] == pytest.approx(128 / 36, rel=0.01)


def test_caches_of_different_types_never_share_a_prefix() -> None:
    hashes = set()
    for name in ("auto", "fp8", "int8_per_token_head"):
        with LLM("shop", kv_cache_dtype=name, max_model_len=64) as llm:
            hashes.add(llm.llm_engine.engine_core.scheduler.kv.hasher.root(None, None))
    assert len(hashes) == 3


def test_a_backend_that_cannot_read_it_says_so() -> None:
    with pytest.raises(ConfigError, match="'sdpa' cannot serve this model: it reads no quantised KV cache"):
        LLM("shop", kv_cache_dtype="fp8", attention_backend="sdpa")
