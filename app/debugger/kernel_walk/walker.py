"""Run a model into one request's cache and walk through it. Imports torch, so only the worker imports this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from app.debugger.kernel_walk.page_walk import PageWalk, walk_pages
from engine.attention.backend import AttentionBackend, AttentionMetadata
from engine.attention.forward_context import ForwardContext, set_forward_context
from engine.config import ConfigError, EngineArgs
from engine.frontend.llm_engine import find_adapter
from engine.quant.kv_cache import KVCache
from engine.resolve import resolve
from engine.trace.blocks import NULL_BLOCK
from engine.worker import kv_cache
from engine.worker.worker import Worker
from prep_common.text import counted

Tell = Callable[[str], None]
"""Reports progress as a sentence."""
CHUNK = 1024
"""Tokens per forward pass."""
MOST_CACHE_BYTES = 2 << 30
"""Maximum size of the pool up to the request's last block; only its blocks use memory."""
MOST_QUERIES = 512
"""Maximum number of queries kept, the last ones of a step's row."""


class Listener:
    """An attention backend that records each layer's queries and outputs in the positions of interest."""

    name = "listener"

    def __init__(self, backend: AttentionBackend, num_layers: int) -> None:
        self._backend = backend
        self._layer = 0
        self.first_kept = 0
        """Positions of the current forward pass."""
        self.queries: list[list[Tensor]] = [[] for _ in range(num_layers)]
        """Per layer, pieces of [positions, heads, head_dim]; `outputs` has the attention outputs for them."""
        self.outputs: list[list[Tensor]] = [[] for _ in range(num_layers)]
        self.options: list[dict[str, Any]] = [{} for _ in range(num_layers)]
        """Per layer: scale, sliding_window, and kv_scale of a quantised cache."""

    def build(self, metadata: AttentionMetadata) -> None:
        self._backend.build(metadata)
        self._layer = 0

    def write(self, *args: Any, **options: Any) -> None:
        self._backend.write(*args, **options)

    def attend(self, query: Tensor, kv: Tensor, metadata: AttentionMetadata, **options: Any) -> Tensor:
        out = self._backend.attend(query, kv, metadata, **options)
        self.queries[self._layer].append(query[self.first_kept :].clone())
        self.outputs[self._layer].append(out[self.first_kept :].clone())
        self.options[self._layer] = options
        self._layer += 1
        return out


@dataclass
class Computed:
    """One request after the forward passes of its tokens."""

    cache: KVCache
    listener: Listener
    table: list[int]
    """The trace's blocks, with spare ones in place of null blocks (`_with_spares`)."""
    first: int
    """Position of the first recorded query."""

    def query(self, layer: int, position: int) -> tuple[Tensor, Tensor]:
        """The query [heads, head_dim] of one position, and its attention output."""
        index = position - self.first
        queries, outputs = torch.cat(self.listener.queries[layer]), torch.cat(self.listener.outputs[layer])
        if not 0 <= index < len(queries):
            last = self.first + len(queries) - 1
            raise ConfigError(f"queries of positions {self.first} to {last} are kept, not of {position}")
        return queries[index], outputs[index]


class Walker:
    """Answers questions. Keeps the last model and request, so that another layer or head is fast."""

    def __init__(self) -> None:
        self._loaded: tuple[str, Worker] | None = None
        self._computed: tuple[str, Computed] | None = None

    @torch.inference_mode()
    def answer(self, question: dict[str, Any], tell: Tell) -> dict[str, Any]:
        worker = self._load(question, tell)
        config = worker.model_config
        layer, head = question["layer"], question["head"]
        if not (0 <= layer < config.num_hidden_layers and 0 <= head < config.num_attention_heads):
            raise ConfigError(
                f"{config.model} has {counted(config.num_hidden_layers, 'layer')} and "
                f"{counted(config.num_attention_heads, 'head')}"
            )
        computed = self._compute(worker, question, tell)
        position = question["position"] if question["position"] >= 0 else len(question["tokens"]) - 1
        query, theirs = computed.query(layer, position)
        options = computed.listener.options[layer]
        walk = walk_pages(query, computed.cache.kv[:, layer], computed.table, position + 1, **options)
        return {
            "model": config.model,
            "dtype": config.dtype,
            "kv_dtype": str(computed.cache.kv.dtype).removeprefix("torch."),
            "num_layers": config.num_hidden_layers,
            "num_heads": config.num_attention_heads,
            "num_kv_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "sliding_window": options["sliding_window"],
            "scale": options["scale"],
            "layer": layer,
            "head": head,
            "position": position,
            "row_start": computed.first,
            "difference": float((walk.output - theirs.float()).abs().max()),
            "largest": float(theirs.abs().max()),
            **_of_head(walk, head, question["table"]),
        }

    def _load(self, question: dict[str, Any], tell: Tell) -> Worker:
        key = repr((question["args"], question["fingerprint"], question["lora"]))
        if self._loaded is not None and self._loaded[0] == key:
            return self._loaded[1]
        self._loaded = self._computed = None
        tell(f"Loading {question['args']['model']} …")
        engine = resolve(EngineArgs.create(**question["args"], device="cpu"))
        config = engine.model
        if question["fingerprint"] and config.fingerprint != question["fingerprint"]:
            raise ConfigError(
                f"{config.model} here has other weights or another dtype than the recorded run (fingerprint "
                f"{config.fingerprint[:8]}, the run's is {question['fingerprint'][:8]}): its scores would not be "
                "the run's"
            )
        worker = Worker(engine)
        if question["lora"]:
            name = question["lora"]
            if worker.lora is None:
                raise ConfigError(f"the run had no adapters switched on, and the request names {name}")
            worker.add_lora(name, str(find_adapter(name)))
            worker.lora.activate([(name, 0)])
        self._loaded = key, worker
        return worker

    def _compute(self, worker: Worker, question: dict[str, Any], tell: Tell) -> Computed:
        key = repr((question["tokens"], question["table"], question["row_start"]))
        if self._computed is not None and self._computed[0] == key:
            return self._computed[1]
        tell(f"Computing {counted(len(question['tokens']), 'token')} …")
        self._computed = None
        self._computed = key, _compute(worker, question)
        return self._computed[1]


def _compute(worker: Worker, question: dict[str, Any]) -> Computed:
    """Run all tokens through the model in chunks, with keys and values in the blocks of the trace."""
    tokens, table = question["tokens"], _with_spares(question["table"])
    block_bytes = kv_cache.layout_of(worker.model_config, worker.config.cache).bytes_per_block
    if (max(table) + 1) * block_bytes > MOST_CACHE_BYTES:
        table = list(range(1, len(table) + 1))  # the pool is too large for this machine: pack the same pages
    cache = kv_cache.allocate(worker.model_config, worker.config.cache, max(table) + 1, torch.device("cpu"))
    listener = Listener(worker.backend, worker.model_config.num_hidden_layers)
    first = max(question["row_start"], len(tokens) - MOST_QUERIES)
    for start in range(0, len(tokens), CHUNK):
        end = min(start + CHUNK, len(tokens))
        listener.first_kept = min(max(first - start, 0), end - start)
        _forward(worker, listener, cache, tokens, table, start, end)
    return Computed(cache, listener, table, first)


def _with_spares(table: list[int]) -> list[int]:
    """The table with a separate block in place of every null block: earlier queries attended to those tokens, and later
    keys and values depend on them."""
    spares = count(max(table) + 1)
    return [next(spares) if block == NULL_BLOCK else block for block in table]


def _forward(
    worker: Worker, listener: Listener, cache: KVCache, tokens: list[int], table: list[int], start: int, end: int
) -> None:  # fmt: skip
    size, num_tokens = worker.config.cache.block_size, end - start
    positions = torch.arange(start, end)
    blocks = torch.tensor(table)
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, num_tokens], dtype=torch.int32),
        seq_lens=torch.tensor([end], dtype=torch.int32),
        block_table=blocks[None].to(torch.int32),
        slot_mapping=blocks[positions // size] * size + positions % size,
        num_decode_rows=1 if num_tokens == 1 else 0,
        max_query_len=num_tokens,
        max_seq_len=end,
        query_start_loc_cpu=[0, num_tokens],
        seq_lens_cpu=[end],
    )
    has_adapter = worker.lora is not None and worker.lora.slot_of
    adapter = torch.zeros(num_tokens, dtype=torch.int32) if has_adapter else None
    listener.build(metadata)
    context = ForwardContext(metadata, listener, cache.kv, cache.scales, token_adapter=adapter)
    with set_forward_context(context):
        worker.model(torch.tensor(tokens[start:end]), positions)


def _of_head(walk: PageWalk, head: int, table: list[int]) -> dict[str, Any]:
    """The data of one head for the page, and the shares of all heads."""
    shares = walk.shares()
    pages = [
        {
            "page": visit.page.page,
            "block_id": table[visit.page.page],
            "first": visit.page.first,
            "end": visit.page.end,
            "score_max": float(visit.score_max[head]),
            "m": float(visit.m[head]),
            "rescale": float(visit.rescale[head]),
            "added": float(visit.added[head]),
            "mass": float(visit.mass[head]),
            "share": float(shares[index, head]),
            "scores": visit.scores[head].tolist(),
            "acc": visit.acc[head].tolist(),
            "bytes": visit.bytes_read,
        }
        for index, visit in enumerate(walk.visits)
    ]
    return {
        "pages": pages,
        "shares": [[round(share, 4) for share in row] for row in shares.T.tolist()],
        "output": walk.output[head].tolist(),
        "bytes_read": walk.bytes_read,
    }
