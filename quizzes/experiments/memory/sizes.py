"""KV bytes from the shapes of models."""

import sys
from typing import Literal

from engine.core.blocks import BlockPool
from engine.core.hashing import sha256
from engine.sim import precision
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import ModelShape, get_model
from quizzes.experiments import Result, arg, experiment

KvDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8_per_token_head"]
"""Values of kv_cache_dtype that the engine knows; auto is the model's own type."""


def attention_shape(
    layers: int, kv_heads: int, head_dim: int, sliding_window: int | None = None
) -> ModelShape:
    """Return a model shape for KV arithmetic: as many query heads as KV heads, a vocabulary of one."""
    width = kv_heads * head_dim
    heads = (kv_heads, kv_heads, head_dim)
    return ModelShape("drawn", "drawn", layers, width, width, *heads, 1, 1, sliding_window=sliding_window)


def deployment_of(shape: ModelShape, kv_dtype: str, *, tp: int = 1, dtype: str = "bfloat16") -> Deployment:
    """Return a deployment whose KV bytes do not depend on its card."""
    return Deployment(shape, get_hardware("h100"), tp=tp, dtype=dtype, kv_cache_dtype=kv_dtype)


@experiment("E01")
def kv_bytes(
    layers: int = arg(32, 1, 512),
    kv_heads: int = arg(8, 1, 512),
    head_dim: int = arg(128, 1, 1024),
    kv_dtype: KvDtype = "bfloat16",
    tokens: int = arg(4096, 1, 100_000_000),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Count KV bytes per token, block and sequence from a model's shape, as the engine's planner does.

    kv_heads: heads with their own keys and values; query heads do not matter. `auto` is a 16-bit model.

    Returns: Scales of a quantised cache included.
        per_token_per_layer, per_token, per_block [B]
        per_sequence [B]: Bytes of `tokens` tokens, without the unused slots of the last block.
        scale_bytes_per_token [B]: Part of per_token that is not keys and values.
    """
    deployment = deployment_of(attention_shape(layers, kv_heads, head_dim), kv_dtype)
    per_token = int(deployment.kv_bytes_per_token)
    width = precision.kv_bytes(kv_dtype, precision.get_precision("bfloat16"))
    return Result(
        per_token_per_layer=per_token // layers,
        per_token=per_token,
        per_block=per_token * block_size,
        per_sequence=per_token * tokens,
        scale_bytes_per_token=per_token - int(layers * 2 * kv_heads * head_dim * width),
    )


@experiment("E01")
def model_kv(
    model: str = "llama-3-70b",
    kv_dtype: KvDtype = "bfloat16",
    tokens: int = arg(4096, 1, 100_000_000),
    tp: Literal[1, 2, 4, 8, 16, 32, 64] = 1,
) -> Result:
    """Count KV bytes of a model (`prep sim list`) per token, GPU and sequence, with parallelism, windows and MLA.

    Returns: Bytes of the cache of one model.
        attention: MHA, GQA, MQA, MLA; +SWA with a sliding window.
        layers [layers]; heads, kv_heads [heads]
        per_token [B]: Bytes on all GPUs together, with every copy counted.
        per_token_per_gpu [B]
        per_token_per_layer [B]: Bytes of one copy.
        copies [x]: Copies that tensor parallelism keeps of the same numbers.
        tokens_held [tokens]: Tokens kept of a sequence of `tokens`: at most the window.
        per_sequence [B]: Bytes on all GPUs together.
        unshared_per_token [B]: Bytes if every query head had its own keys and values.
    """
    shape = get_model(model)
    one, here = deployment_of(shape, kv_dtype), deployment_of(shape, kv_dtype, tp=tp)
    held = shape.kv_tokens_held(tokens)
    return Result(
        attention=shape.attention_kind,
        layers=shape.num_layers,
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        per_token=int(here.kv_bytes_per_token),
        per_token_per_gpu=here.kv_bytes_per_token_per_device,
        per_token_per_layer=one.kv_bytes_per_token / shape.num_layers,
        copies=here.kv_bytes_per_token / one.kv_bytes_per_token,
        tokens_held=held,
        per_sequence=int(held * here.kv_bytes_per_token),
        unshared_per_token=int(one.kv_bytes_per_token * _unshared(shape)),
    )


def _unshared(shape: ModelShape) -> float:
    """Elements with keys and values for every query head, over those that are kept."""
    if shape.mla is None:
        return shape.num_heads / shape.num_kv_heads
    full = shape.num_heads * (shape.mla.qk_nope_head_dim + shape.mla.qk_rope_head_dim + shape.mla.v_head_dim)
    return full / (shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim)


@experiment("E01")
def hybrid_kv(
    full_layers: int = arg(8, 1, 512),
    window_layers: int = arg(40, 1, 512),
    window: int = arg(1024, 1, 1_000_000),
    kv_heads: int = arg(8, 1, 512),
    head_dim: int = arg(128, 1, 1024),
    kv_dtype: KvDtype = "bfloat16",
    tokens: int = arg(32_768, 1, 100_000_000),
) -> Result:
    """Count KV bytes of a sequence when some layers attend to everything and others to a sliding window.

    Returns: One sequence in an ideal hybrid manager, which keeps only what can still be read.
        full_layers_bytes, window_layers_bytes, hybrid_bytes [B]
        all_full_bytes [B]: Bytes if every layer kept every token.
        saving [share]
    """

    def bytes_of(layers: int, sliding_window: int | None) -> int:
        shape = attention_shape(layers, kv_heads, head_dim, sliding_window)
        return int(deployment_of(shape, kv_dtype).kv_bytes_per_token * shape.kv_tokens_held(tokens))

    full, windowed = bytes_of(full_layers, None), bytes_of(window_layers, window)
    everything = bytes_of(full_layers + window_layers, None)
    return Result(
        full_layers_bytes=full,
        window_layers_bytes=windowed,
        hybrid_bytes=full + windowed,
        all_full_bytes=everything,
        saving=1 - (full + windowed) / everything,
    )


TABLE_ENTRY_BYTES = 4
"""A block id in the device's block table is an int32, in vLLM and here."""


@experiment("E12")
def metadata(
    layers: int = arg(32, 1, 512),
    kv_heads: int = arg(8, 1, 512),
    head_dim: int = arg(128, 1, 1024),
    kv_dtype: KvDtype = "bfloat16",
    block_size: int = arg(16, 1, 1024),
    max_num_seqs: int = arg(256, 1, 65_536),
    max_model_len: int = arg(8192, 1, 10_000_000),
    num_blocks: int = arg(20_000, 1, 100_000_000),
) -> Result:
    """Count the bookkeeping bytes per KV block: block tables on the device, hashes and block records on the host.

    The device's table has a row for each of max_num_seqs requests, as long as max_model_len needs, whatever the pool
    of `num_blocks` holds (vllm/v1/worker/block_table.py).

    Returns: Figures of one block, unless said otherwise.
        kv_bytes [B]
        table_bytes [B]: Block-table entry on the device.
        digest_bytes [B]: Hash on the host, with prefix caching.
        record_bytes [B]: Host memory of the Block object, its id, its hash and their places in the pool's list and
            index; depends on the version of Python.
        table_share [share]: table_bytes over KV bytes.
        host_share [share]: record_bytes over KV bytes, which lie in another memory.
        device_table_bytes [B]: The whole table, allocated at start.
        device_table_share [share]: device_table_bytes over the KV bytes of the pool.
    """
    per_token = deployment_of(attention_shape(layers, kv_heads, head_dim), kv_dtype).kv_bytes_per_token
    kv_bytes = int(per_token) * block_size
    block, digest = BlockPool(1001).take(1000)[-1], sha256(b"tokens of a block")
    pointers = 8 + 3 * 8  # its place in the pool's list; hash, key and value of the index, half of it empty
    record = sum(map(sys.getsizeof, (block, block.block_id, digest))) + pointers
    return Result(
        kv_bytes=kv_bytes,
        table_bytes=TABLE_ENTRY_BYTES,
        digest_bytes=len(digest),
        record_bytes=record,
        table_share=TABLE_ENTRY_BYTES / kv_bytes,
        host_share=record / kv_bytes,
        device_table_bytes=(allocated := max_num_seqs * -(-max_model_len // block_size) * TABLE_ENTRY_BYTES),
        device_table_share=allocated / (num_blocks * kv_bytes),
    )
