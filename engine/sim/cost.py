"""Duration of a step: a roofline over the scheduler's plan.

Every part of a forward pass moves bytes and does arithmetic; it takes at least the longer of the two times. For T
tokens in R rows (Williams et al. 2009; the same decomposition as Vidur, Agrawal et al. 2024, 2405.05465, section 4):

    part         bytes moved                        arithmetic
    linear       all its weights, once per step     2 x parameters x T          T decides: decode is left, prefill right
    experts      those that some token chose        2 x active parameters x T
    head         vocabulary x hidden                2 x that x sampled rows
    attention    the KV of every row's context      pairs of positions          R and context decide, T does not help
    collectives  2 all-reduces per layer (TP), one hand-over per stage (PP): `interconnect.py`
    adapters     the matrices of every adapter      2 x those x its tokens      all adapters of the batch are read
    overhead     per step (launching, Python) and per row (bookkeeping)

Two limits: peak rates times an efficiency are an estimate until they are measured (`prep sim calibrate`, for a
CPU); and with PP a step passes the stages in turn, as with one batch in flight, so PP saves memory, not time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.config.graph_sizes import graph_size
from engine.core.request import Request
from engine.core.sched_output import SchedulerOutput
from engine.sim.hardware import Hardware
from engine.sim.interconnect import step_traffic
from engine.sim.memory import Deployment


@dataclass(frozen=True)
class Efficiency:
    """Shares of a datasheet's peak that good kernels reach, and the fixed costs of a step.

    Public serving measurements on A100 and H100 lie near these: large GEMMs at 60-75 % of peak, decode attention and
    small GEMMs at 75-85 % of bandwidth, FlashAttention-2 prefill at about half of peak.
    """

    gemm_flops: float = 0.7
    bandwidth: float = 0.8
    attention_flops: float = 0.5
    attention_bandwidth: float = 0.75
    link: float = 0.7
    step_overhead: float = 0.8e-3  # seconds per step: scheduling, inputs, one graph launch, sampling, output
    eager_overhead: float = 20e-6  # seconds per layer of a step that computes a prompt: no graph is replayed
    row_overhead: float = 2e-6


@dataclass(frozen=True)
class Rates:
    """Achieved rates per second, and overheads in seconds."""

    bytes_per_s: float
    flops: float
    attention_bytes_per_s: float
    attention_flops: float
    step_overhead: float
    eager_overhead: float  # seconds per layer, in steps that compute more than one token in some row
    row_overhead: float
    overlaps: bool  # reading weights overlaps with products, as on a GPU; otherwise a product takes the sum
    link_share: float = 0.7
    adapter_bytes_per_s: float = 1e30
    adapter_flops: float = 1e30
    adapter_overhead: float = 0.0  # seconds per layer, in steps with an adapter
    eager_row_overhead: float = 0.0  # seconds per row, in the steps of `eager_overhead`
    lookup_overhead: float = 0.0  # seconds per row, in steps of an engine that drafts by looking up n-grams

    @classmethod
    def of(cls, hardware: Hardware, compute_dtype: str, efficiency: Efficiency | None = None) -> Rates:
        """Return datasheet times efficiency. Attention computes in 16 bits for every weight format."""
        share = efficiency or Efficiency()
        wide = next(dtype for dtype in ("bfloat16", "float16", "float32") if dtype in hardware.flops)
        return cls(
            bytes_per_s=hardware.bytes_per_s * share.bandwidth,
            flops=hardware.peak(compute_dtype) * share.gemm_flops,
            attention_bytes_per_s=hardware.bytes_per_s * share.attention_bandwidth,
            attention_flops=hardware.peak(wide) * share.attention_flops,
            step_overhead=share.step_overhead,
            eager_overhead=share.eager_overhead,
            row_overhead=share.row_overhead,
            overlaps=not hardware.is_cpu,
            link_share=share.link,
            adapter_bytes_per_s=hardware.bytes_per_s * share.bandwidth,
            adapter_flops=hardware.peak(wide) * share.gemm_flops,
        )


@dataclass(slots=True)
class StepLoad:
    """The quantities of a step that determine its cost."""

    num_rows: int = 0
    num_tokens: int = 0
    num_sampled: int = 0  # positions whose logits are computed
    decode_context: int = 0  # positions read by rows of one token, summed; their KV is read in every layer
    prefill_pairs: int = 0  # (query, key) pairs of the other rows
    prefill_context: int = 0  # positions whose KV the other rows read, summed over rows
    num_adapters: int = 0  # different adapters of the rows
    adapter_tokens: int = 0  # tokens of rows with an adapter

    @property
    def is_replayed(self) -> bool:
        """Whether every token gets logits: all rows decode, some with drafts, and the step is replayed from a graph."""
        return self.num_tokens == self.num_sampled


def pairs_of(start: int, num_tokens: int, window: int | None) -> int:
    """Return the (query, key) pairs of a causal chunk: position p reads min(p + 1, window) positions."""
    end = start + num_tokens
    full = num_tokens * start + num_tokens * (num_tokens + 1) // 2
    if window is None or end <= window:
        return full
    if start >= window:
        return num_tokens * window
    return pairs_of(start, window - start, None) + (end - window) * window


def load_of(out: SchedulerOutput, requests: Mapping[str, Request], window: int | None = None) -> StepLoad:
    """Return the load of a plan. `requests`: the scheduler's, before they receive this step's tokens."""
    load = StepLoad(num_rows=len(out.scheduled))
    adapters: set[str] = set()
    for row in out.scheduled:
        start, num_tokens = row.start, row.num_tokens
        end = start + num_tokens
        load.num_tokens += num_tokens
        if num_tokens == 1:
            load.decode_context += end if window is None or end < window else window
        else:
            load.prefill_pairs += pairs_of(start, num_tokens, window)
            load.prefill_context += end if window is None else min(end, window + num_tokens)
        request = requests[row.request_id]
        if end >= len(request.token_ids):
            load.num_sampled += 1 + len(row.spec_token_ids)
        if request.lora_key is not None:
            adapters.add(request.lora_key)
            load.adapter_tokens += num_tokens
    load.num_adapters = len(adapters)
    return load


class CostModel:
    """Computes step durations of one deployment; `seconds` depends on the load alone."""

    def __init__(self, deployment: Deployment, rates: Rates | None = None) -> None:
        model, precision, tp = deployment.model, deployment.precision, deployment.tp
        self.deployment = deployment
        self.rates = rates or Rates.of(deployment.hardware, precision.compute_dtype(deployment.hardware))
        self.window = model.sliding_window
        self._common_bytes = model.common_params * precision.weight_bytes / tp
        self._linear_flops = 2 * (model.common_params + model.active_routed_params) / tp
        self._routed_bytes = model.routed_params * precision.weight_bytes / tp
        self._miss = 1 - model.moe.top_k / model.moe.num_experts if model.moe else 0.0
        self._head_params = model.vocab_size * model.hidden_size / tp
        self._head_bytes = self._head_params * precision.other_bytes
        self._kv_bytes = deployment.kv_bytes_per_token_per_device * deployment.pp
        self._pair_flops = model.attention_flops_per_pair / tp
        self._seconds_per_position = self._kv_bytes / self.rates.attention_bytes_per_s
        self._is_cpu = deployment.hardware.is_cpu
        if not self._is_cpu:
            arithmetic = self._pair_flops / self.rates.attention_flops
            self._seconds_per_position = max(self._seconds_per_position, arithmetic)
        self._eager = self.rates.eager_overhead * model.num_layers
        self._num_layers = model.num_layers
        self._adapter_params = model.adapter_params(deployment.max_lora_rank) / tp
        self._adapter_bytes = self._adapter_params * precision.other_bytes
        self._decode_fixed: dict[int, tuple[float, float, float]] = {}  # rows -> costs without context

    def seconds(self, load: StepLoad) -> float:
        """Return the duration of a step."""
        return sum(self.parts(load).values())

    def decode_seconds(self, num_rows: int, context: int) -> float:
        """Return exactly `seconds` of a step in which each row computes one token: a fast path for the usual step."""
        fixed = self._decode_fixed.get(num_rows)
        if fixed is None:
            part = self.parts(StepLoad(num_rows, num_rows, num_rows, 0))
            products = part["linear"] + part["head"]
            fixed = self._decode_fixed[num_rows] = (products, part["collectives"], part["overhead"])
        products, collectives, rest = fixed
        return products + context * self._seconds_per_position + collectives + rest

    def parts(self, load: StepLoad) -> dict[str, float]:
        """Return seconds by part; they add up to `seconds`."""
        linear, head = self.products(load)
        return {
            "linear": self._roofline(*linear),
            "head": self._roofline(*head),
            "attention": self._attention(load),
            "collectives": self._collectives(load),
            "overhead": self._rest(load),
            "adapters": self._adapters(load),
        }

    def bytes_and_flops(self, load: StepLoad) -> tuple[float, float]:
        """Return weight bytes read and FLOP of all matrix products."""
        linear, head = self.products(load)
        return linear[0] + head[0], linear[1] + head[1]

    def products(self, load: StepLoad) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return weight bytes read and FLOP of the linear layers, and of the head."""
        num_tokens, num_sampled = self._padded(load)
        linear = self._weight_bytes(num_tokens), self._linear_flops * num_tokens
        return linear, (self._head_bytes if num_sampled else 0.0, 2 * self._head_params * num_sampled)

    def attention_work(self, load: StepLoad) -> tuple[float, float]:
        """Return KV bytes read by single-token rows, and attention FLOP of the other rows."""
        return load.decode_context * self._kv_bytes, load.prefill_pairs * self._pair_flops

    def adapter_work(self, load: StepLoad) -> tuple[float, float]:
        """Return bytes read and FLOP of the adapters' matrices."""
        return load.num_adapters * self._adapter_bytes, 2 * self._adapter_params * load.adapter_tokens

    def intensity(self, load: StepLoad) -> float:
        """Return FLOP per byte of the linear layers; compare with `Hardware.ridge`."""
        return self._linear_flops * load.num_tokens / self._weight_bytes(load.num_tokens)

    def _weight_bytes(self, num_tokens: int) -> float:
        """Return weight bytes read. Routing is random: with probability (1 - k/E)^T no token picks an expert."""
        if not self._routed_bytes:
            return self._common_bytes
        return self._common_bytes + self._routed_bytes * (1 - self._miss**num_tokens)

    def _padded(self, load: StepLoad) -> tuple[int, int]:
        """Return the tokens and sampled positions that are computed: on a CPU those of the replayed graph."""
        if self._is_cpu and load.is_replayed:  # on a GPU bytes limit a replayed step: padding costs nothing
            size = graph_size(load.num_tokens)
            return size, size
        return load.num_tokens, load.num_sampled

    def _adapters(self, load: StepLoad) -> float:
        if not load.num_adapters:
            return 0.0
        num_bytes, flops = self.adapter_work(load)
        moving, computing = num_bytes / self.rates.adapter_bytes_per_s, flops / self.rates.adapter_flops
        products = max(moving, computing) if self.rates.overlaps else moving + computing
        return products + self.rates.adapter_overhead * self._num_layers

    def _roofline(self, num_bytes: float, flops: float) -> float:
        moving, computing = num_bytes / self.rates.bytes_per_s, flops / self.rates.flops
        if self.rates.overlaps:
            return moving if moving > computing else computing
        return moving + computing

    def _attention(self, load: StepLoad) -> float:
        """Return attention seconds: on a GPU the longer of moving and computing; a CPU's measured rate covers both."""
        seconds = load.decode_context * self._seconds_per_position
        if load.prefill_pairs:
            computing = load.prefill_pairs * self._pair_flops / self.rates.attention_flops
            moving = load.prefill_context * self._kv_bytes / self.rates.attention_bytes_per_s
            seconds += computing if self._is_cpu else max(moving, computing)
        return seconds

    def _collectives(self, load: StepLoad) -> float:
        """Return seconds of communication."""
        replica = self.deployment
        if replica.num_devices == 1:
            return 0.0
        traffic = step_traffic(
            hidden_size=replica.model.hidden_size,
            num_layers=replica.model.num_layers,
            vocab_size=replica.model.vocab_size,
            value_bytes=replica.precision.other_bytes,
            num_tokens=load.num_tokens,
            num_sampled=load.num_sampled,
            tensor_parallel_size=replica.tp,
            pipeline_parallel_size=replica.pp,
        )
        return traffic.seconds(replica.hardware.link, self.rates.link_share)

    def copying(self, num_bytes: int) -> float:
        """Return seconds to copy bytes between a device and its host before the forward pass that needs them."""
        if not num_bytes:
            return 0.0
        link = self.deployment.hardware.host_link
        return link.latency_s + num_bytes / (link.bytes_per_s * self.rates.link_share)

    def _rest(self, load: StepLoad) -> float:
        seconds = self.rates.step_overhead + self.rates.row_overhead * load.num_rows
        has_drafts = load.num_tokens > load.num_rows
        if load.is_replayed and (self._is_cpu or not has_drafts):  # CUDA graphs hold rows of one token
            return seconds
        return seconds + self._eager + self.rates.eager_row_overhead * load.num_rows
