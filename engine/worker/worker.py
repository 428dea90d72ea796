"""A worker owns one device: it loads the model, sizes and allocates the KV cache, and runs steps.

Source: vLLM v1/worker/gpu_worker.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from engine.attention.backend import AttentionMetadata, AttentionShape, get_backend, why_chosen
from engine.attention.forward_context import ForwardContext, set_forward_context
from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.core.connector import KVConnectorWorker
from engine.core.sched_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.layers.linear import Linear
from engine.layers.moe import FusedMoE
from engine.lora.manager import LoRAManager
from engine.models.loader import CausalLM, load_model
from engine.multimodal.encoder import ToyImageEncoder
from engine.parallel import ALONE, Ranks
from engine.spec.base import DrafterContext, drafter_class
from engine.spec.draft_loading import load_draft_model
from engine.transfer import connector_class
from engine.transfer.blocks import KVBlocks, identity_of
from engine.worker import kv_cache
from engine.worker.model_runner import ModelRunner
from engine.worker.speculator import Speculator
from kernels import registry
from kernels.ops import keep_freed_memory, release_freed_memory
from prep_common.text import counted

IDLE_WAIT_S = 0.005
"""Longest wait of a step without rows for a KV transfer; a new request may arrive meanwhile."""

logger = logging.getLogger(__name__)


class Worker:
    """Loads the model. Call `determine_num_blocks`, `init_cache`, then `execute` once per step."""

    def __init__(
        self, config: EngineConfig, *, device: torch.device | None = None, ranks: Ranks = ALONE
    ) -> None:
        """device: this worker's if several share a machine; None: `config.device`."""
        self.config = config
        self.model_config = model = config.model
        self.device = torch.device(config.device) if device is None else device
        self.ranks = ranks
        self.local_config = local_part(model, ranks)
        """Shape of this rank's part of the model, for its attention and cache."""
        self._cached_layers = self.local_config
        """The layers in the cache: a block holds the target's layers, then the drafter's."""
        if isinstance(config.draft_model, ModelConfig):
            num_layers = self.local_config.num_hidden_layers + config.draft_model.num_hidden_layers
            self._cached_layers = replace(self.local_config, num_hidden_layers=num_layers)
        cache_dtype = kv_cache.layout_of(model, config.cache).dtype
        shape = AttentionShape(
            num_heads=self.local_config.num_attention_heads,
            num_kv_heads=self.local_config.num_key_value_heads,
            head_dim=model.head_dim,
            block_size=config.cache.block_size,
            query_dtype=getattr(torch, model.dtype),
        )
        registry.check_requested()
        self.backend = get_backend(config.attention_backend, self.device, cache_dtype, shape)
        self.why_backend = why_chosen(config.attention_backend, self.device, cache_dtype, shape)
        self.model = cast(CausalLM, load_model(model, self.device, ranks))
        self.lora: LoRAManager | None = None
        if config.lora is not None:
            module = cast(nn.Module, self.model)
            self.lora = LoRAManager(module, config.lora, device=self.device, base_model=model.model)
        if self.device.type == "cpu":
            keep_freed_memory()
            release_freed_memory()  # of loading: weights as they were before they were packed
        self.runner: ModelRunner
        self.host_pool: kv_cache.HostPool | None = None
        """Host memory for blocks that the device has no room for."""
        self._kv_connector: KVConnectorWorker | None = None
        self._cache_size: kv_cache.CacheSize | None = None

    def determine_num_blocks(self) -> int:
        """Return how many KV blocks fit beside the model on this device."""
        is_cuda = self.device.type == "cuda"
        layers = self._cached_layers
        available = (
            self._available_cuda_bytes() if is_cuda else kv_cache.available_cpu_bytes(layers, self.config)
        )
        self._cache_size = kv_cache.choose_num_blocks(layers, self.config, available)
        return self._cache_size.num_blocks

    def describe(self) -> str:
        """Return the attention backend and the size of the KV cache, each with its reason."""
        asked, cache = self.config.attention_backend, self.runner.kv_cache.blocks
        size = "" if self._cache_size is None else f" ({self._cache_size.reason})"
        return (
            f"attention backend {asked or self.backend.name} ({self.why_backend}); KV cache of "
            f"{counted(len(cache), 'block')} x "
            f"{counted(self.config.cache.block_size, 'token')}, {cache.nbytes / 2**20:.0f} MiB{size}"
        )

    def init_cache(self, num_blocks: int) -> None:
        """Allocate the KV cache; steps can run from here on."""
        config = self.config
        cache = kv_cache.allocate(self._cached_layers, config.cache, num_blocks, self.device)
        # Collectives between ranks cannot be replayed.
        can_replay = self.ranks.is_alone and is_recordable(self.model, self.backend.name, self.device)
        self.runner = ModelRunner(
            config,
            self.model,
            self.backend,
            cache,
            use_graphs=can_replay and not config.enforce_eager,
            make_speculator=None if config.speculative is None else self._make_speculator,
            lora=self.lora,
            image_encoder=self._image_encoder() if config.max_images else None,
        )

    def add_lora(self, key: str, folder: str) -> int:
        """Read and check an adapter, or raise LoRAError; return its bytes in host memory."""
        assert self.lora is not None
        return self.lora.add(key, Path(folder))

    def remove_lora(self, key: str) -> None:
        """Unload an adapter that no request uses."""
        assert self.lora is not None
        self.lora.remove(key)

    def drop_loras(self, keys: list[str]) -> None:
        """Free host memory of adapters; they can be read again."""
        assert self.lora is not None
        self.lora.drop(keys)

    def block_bytes(self) -> int:
        """Return the bytes of a block on this device."""
        blocks = self.runner.kv_cache.blocks
        return blocks.nbytes // len(blocks)

    def init_host_pool(self, num_blocks: int) -> None:
        """Allocate host memory for blocks that leave the device; after `init_cache`."""
        self.host_pool = kv_cache.HostPool(self.runner.kv_cache.blocks, num_blocks)
        logger.info("host KV blocks: %d, %.0f MiB", num_blocks, self.host_pool.nbytes / 2**20)

    def init_kv_connector(self) -> dict[str, Any]:
        """Start the worker half of the KV connector; return its address for the other half."""
        config = self.config.kv_transfer
        assert config is not None
        blocks = KVBlocks(self.runner.kv_cache.blocks)
        identity = identity_of(self.model_config.fingerprint, self.runner.kv_cache.kv, blocks.block_bytes)
        self._kv_connector = connector_class(config).make_worker(config, identity, blocks)
        return self._kv_connector.address

    def expert_load(self) -> list[list[int]]:
        """Return the tokens that each expert has computed, for each mixture layer of this rank."""
        layers = cast(nn.Module, self.model).modules()
        return [layer.tokens_per_expert.tolist() for layer in layers if isinstance(layer, FusedMoE)]

    def execute(
        self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None
    ) -> ModelRunnerOutput:
        """Run one step; transfers of the KV connector go on in parallel."""
        connector = self._kv_connector
        if self.host_pool is not None:
            self.host_pool.copy(out)
        if connector is None:
            return self._compute(out, bitmask)
        if out.kv_connector_metadata is not None:  # after the copies: they read blocks that loads fill
            connector.start_load_kv(out.kv_connector_metadata)
            connector.save_kv(out.kv_connector_metadata)
        result = self._compute(out, bitmask)
        # A loop over empty steps would only slow the transfers down.
        result.kv_connector_output = connector.get_finished(0.0 if out.scheduled else IDLE_WAIT_S)
        return result

    def _compute(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None) -> ModelRunnerOutput:
        result = self.runner.execute(out, bitmask)
        if self.lora is not None and out.lora_prefetches:
            self.lora.fetch_ahead(out.lora_prefetches)
        return result

    def release_memory(self) -> None:
        """Give memory that steps have freed back to the system; on a CPU, between two steps."""
        if self.device.type == "cpu":
            release_freed_memory()

    def shutdown(self) -> None:
        """End the threads of the KV connector and of the adapters."""
        if self.lora is not None:
            self.lora.shutdown()
        if self._kv_connector is not None:
            self._kv_connector.shutdown()
            self._kv_connector = None

    def _make_speculator(self, runner: ModelRunner) -> Speculator:
        speculative, draft_model = self.config.speculative, self.config.draft_model
        assert speculative is not None
        context = DrafterContext(
            config=speculative,
            model_config=self.model_config,
            model=self.model,
            num_slots=len(runner.state.num_tokens),
            device=self.device,
            backend=self.backend,
            kv_cache=runner.kv_cache,
            sampler=runner.sampler,
            max_model_len=runner.state.token_ids.shape[1],
            record=runner.replays and self.device.type == "cpu",  # of the C++ kernels
        )
        if draft_model is not None:
            context.draft_model = load_draft_model(draft_model, self.model_config, self.device)
        drafter = drafter_class(speculative.method)(context)
        return Speculator(speculative, drafter, runner.sampler, runner.state, runner.vocab_size)

    def _image_encoder(self) -> ToyImageEncoder:
        some = self.model.embed_tokens(
            torch.arange(min(1024, self.model_config.vocab_size), device=self.device)
        )
        spread = float(some.to(torch.float32).std())
        return ToyImageEncoder(self.model_config.hidden_size, spread, some.dtype, self.device)

    def _available_cuda_bytes(self) -> tuple[int, str]:
        """Return what `gpu_memory_utilization` grants, less the memory in use and that of the largest step."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self._largest_step()
        activations = torch.cuda.max_memory_allocated(self.device) - before
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        share = self.config.memory.gpu_memory_utilization
        reason = f"{share:.0%} of the GPU's memory, less weights and activations"
        return int(total * share) - (total - free) - activations, reason

    @torch.inference_mode()
    def _largest_step(self) -> None:
        """Run a forward pass over a full token budget that stores no KV, and compute logits for every row."""
        num_tokens = self.config.scheduler.max_num_batched_tokens
        num_rows = min(self.config.scheduler.max_num_seqs, num_tokens)
        zeros = torch.zeros(num_tokens, dtype=torch.int64, device=self.device)
        no_rows = torch.zeros(1, dtype=torch.int32, device=self.device)
        metadata = AttentionMetadata(
            query_start_loc=no_rows,
            seq_lens=no_rows[:0],
            block_table=no_rows[:0, None],
            slot_mapping=torch.full_like(zeros, -1),
            num_decode_rows=0,
            max_query_len=0,
            max_seq_len=0,
            query_start_loc_cpu=[0],
            seq_lens_cpu=[],
        )
        cache = kv_cache.allocate(self.local_config, self.config.cache, 1, self.device)
        self.backend.build(metadata)
        with set_forward_context(ForwardContext(metadata, self.backend, cache.kv, cache.scales)):
            hidden = self.model(zeros, zeros)
        logits = self.model.compute_logits(hidden[:num_rows]) if hidden is not None else None
        del hidden
        if logits is not None:  # the sampler holds about two tables of the same size besides
            _ = [torch.empty_like(logits) for _ in range(2)]


def call_worker(worker: Worker, method: str | Callable[..., Any], *args: Any) -> Any:
    """Call a method of the worker by name, or a function with the worker as its first argument."""
    if isinstance(method, str):
        return getattr(worker, method)(*args)
    return method(worker, *args)


def local_part(model: ModelConfig, ranks: Ranks) -> ModelConfig:
    """Return the shape of one rank's part: the layers of its stage, the heads of its tensor rank."""
    size = ranks.tensor.size
    return replace(
        model,
        num_hidden_layers=len(ranks.layers(model.num_hidden_layers)),
        num_attention_heads=model.num_attention_heads // size,
        num_key_value_heads=max(1, model.num_key_value_heads // size),
    )


def is_recordable(model: CausalLM, attention_backend: str, device: torch.device) -> bool:
    """Whether decode steps of this model can be replayed.

    On a CPU a graph records the calls of our kernels, so all matrix products must be these. On a GPU it records
    whatever torch queues, as long as nothing waits for a value; SDPA waits for lengths to gather pages.
    """
    is_cuda = device.type == "cuda"
    if attention_backend not in (("triton", "cuda") if is_cuda else ("cpu",)):
        return False
    for module in cast(nn.Module, model).modules():
        if isinstance(module, FusedMoE):  # the routing changes from step to step
            return False
        if isinstance(module, Linear) and not module.method.is_recordable(module, is_cuda=is_cuda):
            return False
    return True


def resolve_device(name: str) -> torch.device:
    """Return the device; auto: a GPU if there is one. Raises ConfigError for cuda without a GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' was asked for, but torch sees no CUDA device; use device='cpu'")
    return torch.device(name)
