"""The operations of a model on a roofline: FLOPs, least bytes and time of each, at a batch and a context.

    attainable FLOP/s = min(peak of the arithmetic, intensity x memory bandwidth)        intensity = FLOPs / bytes

All figures are those of one GPU and of all layers together. Bytes are every weight, input and output once, as in
`kernels/bench/roofline.py`; weights and attention are those of the cost model (`engine/sim/cost.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from engine.sim.calibration import calibrated_rates
from engine.sim.cost import Rates, pairs_of
from engine.sim.hardware import Hardware
from engine.sim.memory import Deployment
from engine.sim.models import ModelShape

WIDE = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Operation:
    """One kind of work in a step."""

    name: str
    phase: Literal["decode", "prefill"]
    flops: float
    bytes: float
    compute: str
    """The type of its arithmetic."""
    flops_formula: str
    bytes_formula: str
    is_attention: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}, {self.phase}"

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Roofline:
    """Limits of one GPU for a model: datasheet, and the rates that the cost model plans with."""

    deployment: Deployment

    @property
    def hardware(self) -> Hardware:
        return self.deployment.hardware

    @cached_property
    def measured(self) -> Rates | None:
        """The rates that `prep sim calibrate` measured on this machine; None for another GPU, or before that."""
        return calibrated_rates(self.deployment)

    @cached_property
    def rates(self) -> Rates:
        compute = self.deployment.precision.compute_dtype(self.hardware)
        return self.measured or Rates.of(self.hardware, compute)

    @property
    def types(self) -> list[str]:
        """The types in which the model computes: that of the linear layers, then that of attention."""
        linear = self.deployment.precision.compute_dtype(self.hardware)
        return list(dict.fromkeys([linear, wide_type(self.hardware)]))

    def attainable(self, intensity: float, compute: str) -> float:
        """Return the FLOP/s that the datasheet allows at an intensity."""
        return min(self.hardware.peak(compute), intensity * self.hardware.bytes_per_s)

    def planned(self, intensity: float) -> float:
        """Return the FLOP/s of a linear layer at the rates of the cost model."""
        return min(self.rates.flops, intensity * self.rates.bytes_per_s)

    def bound(self, operation: Operation) -> Literal["memory", "compute"]:
        """Return the limit of an operation: the side of the ridge that it is on."""
        return "compute" if operation.intensity > self.hardware.ridge(operation.compute) else "memory"

    def least_seconds(self, operation: Operation) -> float:
        """Return the time at the datasheet's limits."""
        return operation.flops / self.attainable(operation.intensity, operation.compute)

    def planned_seconds(self, operation: Operation) -> float:
        """Return the time at the rates of the cost model."""
        rates = self.rates
        flops, moved = rates.flops, rates.bytes_per_s
        if operation.is_attention:
            flops, moved = rates.attention_flops, rates.attention_bytes_per_s
        times = operation.flops / flops, operation.bytes / moved
        return max(times) if rates.overlaps else sum(times)


def wide_type(hardware: Hardware) -> str:
    """Return the type of attention and head, which stay in 16 bits when the layers are quantised."""
    return next(name for name in WIDE if name in hardware.flops)


def operations(deployment: Deployment, batch: int, context: int) -> list[Operation]:
    """Return the work of a step that decodes `batch` requests of `context` tokens, and of a prompt of that length.

    Of a longer prompt than a step computes, it is the last chunk.
    """
    chunk = min(context, deployment.max_num_batched_tokens)
    model = deployment.model
    pairs = pairs_of(context - chunk, chunk, model.sliding_window)
    seen = context if model.sliding_window is None else min(context, model.sliding_window + chunk)
    held = model.kv_tokens_held(context)
    return [
        *_step(deployment, "decode", batch, batch, batch * held, batch * held),
        *_step(deployment, "prefill", chunk, 1, pairs, seen),
    ]


def _step(
    deployment: Deployment,
    phase: Literal["decode", "prefill"],
    tokens: int,
    sampled: int,
    pairs: int,
    keys: int,
) -> list[Operation]:
    """tokens: rows of the linear layers; pairs: (query, key) pairs; keys: positions whose KV is read."""
    model, tp, width = deployment.model, deployment.tp, deployment.precision.other_bytes
    layers, hidden = model.num_layers, model.hidden_size
    compute, wide = deployment.precision.compute_dtype(deployment.hardware), wide_type(deployment.hardware)
    shape = _widths(model)
    logits = model.vocab_size / tp
    head = logits * hidden

    def product(name: str, params: float, inputs: float, outputs: float, what: str) -> Operation:
        """A linear layer: `params` weights on this GPU, `inputs` and `outputs` numbers of a token."""
        moved = params * deployment.precision.weight_bytes + tokens * (inputs + outputs) * width
        return Operation(
            name, phase, 2 * params * tokens, moved, compute,
            f"2 x {params:,.0f} weights x {tokens:,} tokens   ({what})",
            f"{params:,.0f} weights x {deployment.precision.weight_bytes:.3g} B + {tokens:,} tokens x "
            f"{inputs + outputs:,.0f} in and out x {width} B",
        )  # fmt: skip

    queries = layers * shape.attended * width / tp
    kv = deployment.kv_bytes_per_token_per_device
    pair = model.attention_flops_per_pair / tp
    return [
        product(
            "QKV", layers * shape.qkv_params / tp, layers * hidden, layers * shape.qkv / tp, "Q, K and V of all layers"
        ),
        Operation(
            "Attention", phase, pairs * pair, keys * kv + tokens * queries, wide,
            f"{pairs:,} (query, key) pairs x {pair:,.0f} FLOPs",
            f"{keys:,} keys x {kv:,.0f} B of KV + {tokens:,} tokens x {queries:,.0f} B of queries and outputs",
            is_attention=True,
        ),
        product(
            "Output", layers * shape.out_params / tp, layers * shape.out / tp, layers * hidden, "attention's output"
        ),
        _mlp(deployment, phase, tokens),
        Operation(
            "LM head", phase, 2 * head * sampled, (head + sampled * (hidden + logits)) * width, wide,
            f"2 x {head:,.0f} weights x {sampled:,} sampled tokens",
            f"({head:,.0f} weights + {sampled:,} x ({hidden:,} in + {logits:,.0f} logits)) x {width} B",
        ),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Widths:
    """Parameters and numbers per token of one layer's attention."""

    qkv_params: float
    out_params: float
    qkv: float
    """Outputs of the QKV product."""
    out: float
    """Inputs of the output product."""
    attended: float
    """Numbers of a token that attention reads as queries and writes as outputs."""


def _widths(model: ModelShape) -> _Widths:
    if (mla := model.mla) is not None:
        out = model.num_heads * mla.v_head_dim
        qkv = (
            model.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
            + mla.kv_lora_rank
            + mla.qk_rope_head_dim
        )
        attended = model.num_heads * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim)
    else:
        out = model.num_heads * model.head_dim
        qkv = out + 2 * model.num_kv_heads * model.head_dim
        attended = 2 * out
    out_params = out * model.hidden_size
    return _Widths(model.attention_params - out_params, out_params, qkv, out, attended)


def _mlp(deployment: Deployment, phase: Literal["decode", "prefill"], tokens: int) -> Operation:
    """The MLPs of all layers; of a mixture, the experts that some token of the batch chooses."""
    model, tp, precision = deployment.model, deployment.tp, deployment.precision
    compute = precision.compute_dtype(deployment.hardware)
    common = (
        model.common_params
        - model.num_layers * (model.attention_params + 2 * model.hidden_size)
        - model.hidden_size
    )
    active = (common + model.active_routed_params) / tp
    miss = 1 - model.moe.top_k / model.moe.num_experts if model.moe else 0.0
    read = (common + model.routed_params * (1 - miss**tokens)) / tp
    hidden, inner = model.hidden_size, active / 3 / model.hidden_size  # of all layers: gate, up and down
    numbers = 2 * model.num_layers * hidden + 3 * inner
    experts = (
        f", {read / ((common + model.routed_params) / tp):.0%} of the experts and shared weights"
        if model.moe
        else ""
    )
    return Operation(
        "Experts" if model.moe else "MLP", phase, 2 * active * tokens,
        read * precision.weight_bytes + tokens * numbers * precision.other_bytes, compute,
        f"2 x {active:,.0f} active weights x {tokens:,} tokens   (gate, up, down)",
        f"{read:,.0f} weights{experts} x {precision.weight_bytes:.3g} B + {tokens:,} tokens x "
        f"{numbers:,.0f} in and out x {precision.other_bytes} B",
    )  # fmt: skip


def first_compute_bound(roofline: Roofline, context: int, most: int = 16_384) -> int | None:
    """Return the least batch whose MLP in decode is compute-bound; None if none up to `most` is."""

    def is_bound(batch: int) -> bool:
        mlp = next(
            operation
            for operation in operations(roofline.deployment, batch, context)
            if operation.name in ("MLP", "Experts")
        )
        return roofline.bound(mlp) == "compute"

    if not is_bound(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_bound(middle) else (middle, high)
    return high
