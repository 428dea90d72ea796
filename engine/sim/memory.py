"""Memory plan of a device: weights, activations, and the rest for KV.

    device memory x gpu_memory_utilization
      - weights          this GPU's share of the parameters
      - runtime          CUDA context, communication buffers, captured graphs
      - activations      of the largest step: hidden states of its tokens, logits of its rows
      = KV budget        -> blocks -> tokens -> sequences at once

The order of vLLM's boot log (vllm/v1/worker/gpu_worker.py, determine_available_memory) and of our own worker
(engine/worker/worker.py). Weights, KV and blocks are exact; activations are an estimate, a few percent of the card.
With pipeline stages, weights are the mean of the stages and KV that of the largest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.config import ConfigError
from engine.config.scheduler import default_batch_sizes
from engine.sim.hardware import GPUS, Hardware, get_hardware
from engine.sim.models import ModelShape, get_model
from engine.sim.precision import KV_SCALE_BYTES, Precision, get_precision, kv_bytes
from prep_common.text import GIB

GPU_RUNTIME_BYTES = 1.0 * GIB  # CUDA context, NCCL buffers and graphs, as in vLLM's boot log on any card
_TP_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class DoesNotFit(ConfigError):
    """The model, or one sequence of it, is too large for the device. `short_by` is in bytes, per device."""

    def __init__(self, message: str, short_by: float) -> None:
        super().__init__(message)
        self.short_by = short_by


@dataclass(frozen=True)
class Deployment:
    """A model on devices: the input of the memory and time estimates."""

    model: ModelShape
    hardware: Hardware
    tp: int = 1
    pp: int = 1
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int = 8192
    max_lora_rank: int = 16

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "block_size", "max_num_batched_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.gpu_memory_utilization <= 1:
            given = self.gpu_memory_utilization
            raise ConfigError(f"gpu_memory_utilization is a share in (0, 1], got {given}")
        if self.model.num_heads % self.tp:
            raise ConfigError(
                f"tp={self.tp} does not divide the {self.model.num_heads} heads of {self.model.name}; "
                f"choose one of {', '.join(map(str, self.tp_sizes))}"
            )
        kv_heads = self.model.num_kv_heads
        if self.model.mla is None and max(kv_heads, self.tp) % min(kv_heads, self.tp):
            raise ConfigError(
                f"tp={self.tp} and the {kv_heads} KV heads of {self.model.name} do not divide each other: a rank would "
                f"hold part of a head; choose one of {', '.join(map(str, self.tp_sizes))}"
            )
        if self.pp > self.model.num_layers:
            layers = f"the {self.model.num_layers} layers of {self.model.name}"
            raise ConfigError(f"pp={self.pp} is more than {layers}")

    @property
    def tp_sizes(self) -> list[int]:
        """Return the usual numbers of ranks that divide the heads and hold whole KV heads."""
        heads, kv_heads = self.model.num_heads, self.model.num_kv_heads
        return [
            size
            for size in _TP_SIZES
            if not heads % size
            and (self.model.mla is not None or not max(kv_heads, size) % min(kv_heads, size))
        ]

    @property
    def precision(self) -> Precision:
        return get_precision(self.dtype)

    @property
    def num_devices(self) -> int:
        return self.tp * self.pp

    @property
    def weight_bytes(self) -> float:
        """Bytes of the whole model on all devices together."""
        linear = self.model.common_params + self.model.routed_params
        return linear * self.precision.weight_bytes + self.model.embedding_params * self.precision.other_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes per token on all devices together, including copies."""
        return self._kv_bytes_per_layer * self.model.num_layers * self.tp

    @property
    def kv_bytes_per_token_per_device(self) -> float:
        """KV bytes per token on one device; with PP on one of the largest stage, which has the fewest blocks."""
        return self._kv_bytes_per_layer * -(-self.model.num_layers // self.pp)

    @property
    def _kv_bytes_per_layer(self) -> float:
        """KV bytes per token and layer on one device."""
        elements = self.model.kv_elements_per_token(self.tp) / self.model.num_layers
        scales = elements / self.model.head_dim * KV_SCALE_BYTES.get(self.kv_cache_dtype, 0)
        return elements * kv_bytes(self.kv_cache_dtype, self.precision) + scales


def make_deployment(
    *,
    model: str,
    gpu: str,
    tp: int = 1,
    pp: int = 1,
    dtype: str | None = None,
    kv_cache_dtype: str = "auto",
    gpu_memory_utilization: float = 0.92,
    block_size: int = 16,
    max_model_len: int | None = None,
    longest: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> Deployment:
    """Look up the names and fill in vLLM's defaults. Raises ConfigError.

    longest: tokens of the workload's longest request; None: the model's maximum.
    """
    shape, hardware = get_model(model), get_hardware(gpu)
    most = shape.max_position_embeddings
    if max_model_len is None:
        max_model_len = most if longest is None else min(most, -(-longest // 1024) * 1024)
    if max_model_len > most:
        raise ConfigError(
            f"max_model_len {max_model_len} is more than the {most} positions of {shape.name}; lower it to {most}"
        )
    kind = "cpu" if hardware.is_cpu else "cuda"
    tokens, seqs = default_batch_sizes(kind, int(hardware.memory_bytes), hardware.name)
    tokens = max_num_batched_tokens or max(tokens, max_num_seqs or 0)
    seqs = min(max_num_seqs or seqs, tokens)
    dtype = get_precision(dtype or ("float32" if hardware.is_cpu else "bfloat16")).name
    cache = (kv_cache_dtype, gpu_memory_utilization, block_size)
    return Deployment(shape, hardware, tp, pp, dtype, *cache, tokens, seqs, max_model_len)


@dataclass(frozen=True)
class MemoryPlan:
    """One device's memory in bytes, and the capacity of the KV cache of all devices together."""

    total: float
    usable: float
    weights: float
    runtime: float
    activations: float
    kv_budget: float
    kv_bytes_per_token: float  # KV bytes per token on one device
    num_blocks: int  # number of blocks, including the null block, which holds nothing
    num_tokens: int  # tokens that the cache holds, all sequences together
    max_model_len: int
    max_concurrency: float  # sequences of `max_model_len` at once, as vLLM's boot log prints it


def plan_memory(deployment: Deployment) -> MemoryPlan:
    """Subtract the fixed parts and divide the rest into blocks. Raises DoesNotFit with the deficit and remedies."""
    parts = divide_memory(deployment)
    if parts.kv_budget < 0 or parts.num_tokens < deployment.max_model_len:
        raise _does_not_fit(deployment, parts)
    return parts


def divide_memory(deployment: Deployment) -> MemoryPlan:
    """Return the plan even if it does not fit: its KV budget is then negative or less than one sequence."""
    usable = deployment.hardware.memory_bytes * deployment.gpu_memory_utilization
    weights = deployment.weight_bytes / deployment.num_devices
    runtime = 0.0 if deployment.hardware.is_cpu else GPU_RUNTIME_BYTES
    activations = _activation_bytes(deployment)
    budget = usable - weights - runtime - activations
    per_token = deployment.kv_bytes_per_token_per_device
    num_blocks = max(0, int(budget // (per_token * deployment.block_size)))
    num_tokens = max(0, num_blocks - 1) * deployment.block_size
    return MemoryPlan(
        total=deployment.hardware.memory_bytes,
        usable=usable,
        weights=weights,
        runtime=runtime,
        activations=activations,
        kv_budget=budget,
        kv_bytes_per_token=per_token,
        num_blocks=num_blocks,
        num_tokens=num_tokens,
        max_model_len=deployment.max_model_len,
        max_concurrency=num_tokens / deployment.max_model_len,
    )


def require_room(deployment: Deployment, kv_tokens: int = 0) -> None:
    """Raise DoesNotFit if weights and the KV of `kv_tokens` tokens are more than the devices' whole memory.

    For calculators that need no memory plan: what exceeds this bound cannot exist, whatever runs beside it.
    """
    weights = deployment.weight_bytes / deployment.num_devices
    cache = kv_tokens * deployment.kv_bytes_per_token_per_device
    total = deployment.hardware.memory_bytes
    if weights + cache <= total:
        return
    tokens = f", the KV of {kv_tokens:,} tokens {cache / GIB:,.1f}" if kv_tokens else ""
    message = (
        f"{deployment.model.name} in {deployment.dtype} does not fit on {_where(deployment)}: on each device weights "
        f"take {weights / GIB:,.1f} GiB{tokens}, and there are {total / GIB:.1f}. Choose a narrower dtype, more or "
        "larger devices, or fewer tokens"
    )
    raise DoesNotFit(message, weights + cache - total)


def _activation_bytes(deployment: Deployment) -> float:
    """Return the peak of the largest step: inside an MLP, or the logits plus the sampler's two tables."""
    model, width = deployment.model, deployment.precision.other_bytes
    inner = max(model.intermediate_size, model.num_heads * model.head_dim * 2) / deployment.tp
    hidden = deployment.max_num_batched_tokens * (3 * model.hidden_size + 2 * inner) * width
    rows = min(deployment.max_num_seqs, deployment.max_num_batched_tokens)
    logits = rows * model.vocab_size * 4 * 3
    return max(hidden, logits)


def _where(deployment: Deployment) -> str:
    count, name = deployment.num_devices, deployment.hardware.name
    return f"{count} x {name}" if count > 1 else name


def _does_not_fit(deployment: Deployment, parts: MemoryPlan) -> DoesNotFit:
    needed = deployment.max_model_len * parts.kv_bytes_per_token
    short_by = needed + 2 * deployment.block_size * parts.kv_bytes_per_token - parts.kv_budget
    helps = "; ".join(remedies(deployment))
    message = (
        f"{deployment.model.name} in {deployment.dtype} does not fit on {_where(deployment)}: short by "
        f"{short_by / GIB:.1f} GiB per device. Of {parts.usable / GIB:.1f} GiB usable, weights take "
        f"{parts.weights / GIB:.1f}, activations and runtime "
        f"{(parts.activations + parts.runtime) / GIB:.1f}, and one sequence of {deployment.max_model_len} tokens needs "
        f"{needed / GIB:.1f}. {f'What would fit: {helps}.' if helps else 'No single change makes it fit.'}"
    )
    return DoesNotFit(message, short_by)


def remedies(deployment: Deployment) -> list[str]:
    """Return single changes that make it fit, cheapest first."""
    hardware = deployment.hardware
    width = deployment.precision.weight_bytes
    narrower = [name for name in ("fp8", "int4") if get_precision(name).weight_bytes < width]
    kinds: list[list[tuple[str, dict[str, object]]]] = [
        [
            (f"--max-model-len {n}", {"max_model_len": n})
            for n in (8192, 4096, 2048)
            if n < deployment.max_model_len
        ],
        [(f"--dtype {name}", {"dtype": name}) for name in narrower],
    ]
    if not hardware.is_cpu:
        sizes = [size for size in deployment.tp_sizes if deployment.tp < size <= 16]
        larger = [gpu for gpu in GPUS.values() if gpu.memory_bytes > hardware.memory_bytes]
        kinds.append([(f"--tp {size}", {"tp": size}) for size in sizes])
        kinds.append([(f"--gpu {gpu.name}", {"hardware": gpu}) for gpu in larger])
    first = (next((option for option, change in kind if _fits(deployment, change)), None) for kind in kinds)
    return [option for option in first if option]


def _fits(deployment: Deployment, change: dict[str, object]) -> bool:
    parts = divide_memory(replace(deployment, **change))  # type: ignore[arg-type]
    return parts.kv_budget >= 0 and parts.num_tokens >= parts.max_model_len
