"""Lower bounds of a step's time: the datasheet's rates without losses and overhead."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Literal

from engine.sim.cost import CostModel, Efficiency, Rates, StepLoad, pairs_of
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from quizzes.experiments import BadArguments, Result, arg, deploy, experiment
from quizzes.experiments.charts import LINE, vega

Parallel = Literal[1, 2, 4, 8, 16]
SHARES = ("gemm_flops", "bandwidth", "attention_flops", "attention_bandwidth", "link")
OVERHEADS = ("step_overhead", "eager_overhead", "row_overhead")
PERFECT = Efficiency(**dict.fromkeys(SHARES, 1), **dict.fromkeys(OVERHEADS, 0))


@dataclass(frozen=True)
class Floor:
    """The engine's cost model with perfect kernels."""

    deployment: Deployment
    cost: CostModel

    peak: float
    """FLOP/s of the linear layers' type."""

    @property
    def ridge(self) -> float:
        return self.peak / self.deployment.hardware.bytes_per_s

    def is_compute_bound(self, load: StepLoad) -> bool:
        return self.cost.intensity(load) > self.ridge

    def attention_flops(self, load: StepLoad) -> float:
        pairs = load.decode_context + load.prefill_pairs
        return pairs * self.deployment.model.attention_flops_per_pair / self.deployment.tp

    def most_rows(self, context: int) -> int:
        """Return the requests of `context` tokens whose KV fits into the device's memory beside the weights."""
        deployment = self.deployment
        free = deployment.hardware.memory_bytes - deployment.weight_bytes / deployment.tp
        held = deployment.model.kv_tokens_held(max(1, context))
        return int(free // (held * deployment.kv_bytes_per_token_per_device))

    def kv_bytes(self, load: StepLoad) -> float:
        positions = load.decode_context + load.prefill_context
        return positions * self.deployment.kv_bytes_per_token_per_device


def floor_of(
    model: str,
    hardware: str,
    dtype: str,
    kv_cache_dtype: str = "auto",
    *,
    tp: int = 1,
    rows: int = 0,
    length: int = 0,
) -> Floor:
    """Named model on `tp` named devices, which hold `rows` requests of `length` tokens. Raises DoesNotFit."""
    holds = rows * get_model(model).kv_tokens_held(length)
    deployment = deploy(model, hardware, holds=holds, tp=tp, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    device = deployment.hardware
    compute = deployment.precision.compute_dtype(device)
    cost = CostModel(deployment, Rates.of(device, compute, PERFECT))
    return Floor(deployment, cost, device.peak(compute))


def load_of_rows(rows: int, tokens_per_row: int, context: int) -> StepLoad:
    """Rows that have `context` tokens in the cache and compute `tokens_per_row` more; each gets one token."""
    tokens = rows * tokens_per_row
    if tokens_per_row == 1:
        return StepLoad(rows, tokens, rows, decode_context=rows * (context + 1))
    pairs = rows * pairs_of(context, tokens_per_row, None)
    return StepLoad(rows, tokens, rows, prefill_pairs=pairs, prefill_context=rows * context + tokens)


@experiment("E24", "E61")
def roofline(
    model: str = "llama-3-8b",
    hardware: str = "h100",
    dtype: str = "bfloat16",
    rows: int = arg(1, 1, 100_000),
    tokens_per_row: int = arg(1, 1, 1_000_000),
    context: int = arg(1000, 0, 10_000_000),
    kv_cache_dtype: str = "auto",
    tp: Parallel = 1,
) -> Result:
    """Place a step on the roofline of a device: bytes, arithmetic, and which is the limit.

    Uses the simulator's cost model at 100 % efficiency (Williams, Waterman, Patterson 2009). `rows` requests with
    `context` tokens in the cache compute `tokens_per_row` tokens each; 1 is decode. `tp` devices share weights and KV.

    Returns: One step at the datasheet's rates, on one device. GB are 1e9 bytes, GFLOP 1e9.
        tokens [tokens]: Tokens through the linear layers.
        weight_gb [GB]: Read once: linear layers and output head.
        kv_gb [GB]: Read by attention.
        linear_gflop, attention_gflop [GFLOP]
        intensity [FLOP/B]: Arithmetic intensity of the linear layers.
        attention_intensity [FLOP/B]: Arithmetic intensity of attention on the KV that it reads.
        ridge [FLOP/B]: Ridge point of the device in the type that the linear layers compute in.
        bound: Limit of the linear layers: memory or compute.
        linear_ms, head_ms, attention_ms, collectives_ms, step_ms [ms]
        tokens_per_s [tokens/s]: New tokens, one for each row and step.
        mfu [share]: Arithmetic done over what the device could do in that time: model FLOPs utilisation.
        mbu [share]: Bytes moved over what the memory could move: memory bandwidth utilisation.
    """
    length = context + tokens_per_row
    floor = floor_of(model, hardware, dtype, kv_cache_dtype, tp=tp, rows=rows, length=length)
    load = load_of_rows(rows, tokens_per_row, context)
    weight_bytes, flops = floor.cost.bytes_and_flops(load)
    attention_flops, kv_bytes = floor.attention_flops(load), floor.kv_bytes(load)
    parts, seconds = floor.cost.parts(load), floor.cost.seconds(load)
    return Result(
        tokens=load.num_tokens,
        weight_gb=weight_bytes / 1e9,
        kv_gb=kv_bytes / 1e9,
        linear_gflop=flops / 1e9,
        attention_gflop=attention_flops / 1e9,
        intensity=floor.cost.intensity(load),
        attention_intensity=attention_flops / kv_bytes,
        ridge=floor.ridge,
        bound="compute" if floor.is_compute_bound(load) else "memory",
        **{f"{part}_ms": 1e3 * parts[part] for part in ("linear", "head", "attention", "collectives")},
        step_ms=1e3 * seconds,
        tokens_per_s=rows / seconds,
        mfu=(flops + attention_flops) / floor.peak / seconds,
        mbu=(weight_bytes + kv_bytes) / floor.deployment.hardware.bytes_per_s / seconds,
    )


LARGEST = 1 << 20


@experiment("E26", "E24")
def batch_scaling(
    model: str = "llama-3-8b",
    hardware: str = "h100",
    dtype: str = "bfloat16",
    context: int = arg(1000, 0, 1_000_000),
    batches: list[int] = arg([1, 8, 32, 128, 512], 1, 65_536, count=(1, 20)),
    kv_cache_dtype: str = "auto",
    tp: Parallel = 1,
) -> Result:
    """Scale the decode batch at the datasheet's rates: weights are read once for all rows, KV once per row.

    Returns: By batch size, in the order given; bytes of one of the `tp` devices.
        batches [rows]; step_ms [ms]; tokens_per_s [tokens/s]; weight_mb_per_token, kv_mb_per_token [MB]
        kv_share [share]: KV in all bytes of the step.
        speedup [x]: Tokens per second of the last batch over the first.
        knee [rows]: The smallest batch whose linear layers are limited by arithmetic.
        kv_equals_weights [rows]: The smallest batch that reads at least as many bytes of KV as of weights.
        largest [rows]: The largest batch whose KV has room beside the weights; knees beyond it cannot be reached.
    """
    floor = floor_of(model, hardware, dtype, kv_cache_dtype, tp=tp, rows=max(batches), length=context)

    def read(rows: int) -> tuple[float, float]:
        """Return the bytes of weights and of KV that a step reads."""
        load = load_of_rows(rows, 1, context)
        return floor.cost.bytes_and_flops(load)[0], floor.kv_bytes(load)

    seconds = [floor.cost.seconds(load_of_rows(rows, 1, context)) for rows in batches]
    rates = [rows / time for rows, time in zip(batches, seconds, strict=True)]
    return Result(
        batches=list(batches),
        step_ms=[1e3 * time for time in seconds],
        tokens_per_s=rates,
        weight_mb_per_token=[read(rows)[0] / rows / 1e6 for rows in batches],
        kv_mb_per_token=[read(rows)[1] / rows / 1e6 for rows in batches],
        kv_share=[kv / (kv + weights) for weights, kv in map(read, batches)],
        speedup=rates[-1] / rates[0],
        knee=_first(lambda rows: floor.is_compute_bound(load_of_rows(rows, 1, context))),
        kv_equals_weights=_first(lambda rows: read(rows)[1] >= read(rows)[0]),
        largest=floor.most_rows(context),
    )


def _first(holds: Any) -> int:
    """The smallest number of rows for which it holds, by bisection."""
    return bisect_left(range(LARGEST), True, lo=1, key=holds)


def batch_scaling_chart(result: Result) -> dict[str, Any]:
    """Tokens per second over the batch."""
    columns = {"batch": result.batches, "tokens/s": result.tokens_per_s}
    return vega(columns, LINE, x=("batch:Q", {"scale": {"type": "log"}}), y="tokens/s:Q")


@experiment("E26")
def moe_reads(
    model: str = "mixtral-8x7b",
    hardware: str = "h100",
    dtype: str = "bfloat16",
    tokens: int = arg(8, 1, 65_536),
    tp: Parallel = 2,
) -> Result:
    """Count the experts and bytes that a decode step of a mixture of experts reads, by batch size.

    Returns: One decode step of `tokens` rows, by the simulator's cost model; bytes of all `tp` devices together.
        experts_read [experts]: Expected experts per MoE layer under uniform routing.
        expert_gb [GB]: Read by the step, all layers.
        gb_per_token [GB]: All weights but the head, per token.
        tokens_per_expert [tokens]: Mean rows of one expert's matrix product.
        intensity, ridge [FLOP/B]
        knee [tokens]: Tokens in a step from which the linear layers are limited by arithmetic.
    """
    floor = floor_of(model, hardware, dtype, tp=tp)
    shape, weight_bytes = floor.deployment.model, floor.deployment.precision.weight_bytes
    if shape.moe is None:
        raise BadArguments(f"{model} has no experts; choose mixtral-8x7b, qwen3-30b-a3b or deepseek-v3")
    load = load_of_rows(tokens, 1, 0)
    total = tp * floor.cost.bytes_and_flops(load)[0] - shape.vocab_size * shape.hidden_size * 2
    expert_bytes = total - shape.common_params * weight_bytes
    experts_read = expert_bytes / (shape.routed_params * weight_bytes) * shape.moe.num_experts
    return Result(
        experts_read=experts_read,
        expert_gb=expert_bytes / 1e9,
        gb_per_token=total / tokens / 1e9,
        tokens_per_expert=tokens * shape.moe.top_k / experts_read,
        intensity=floor.cost.intensity(load),
        ridge=floor.ridge,
        knee=_first(lambda rows: floor.is_compute_bound(load_of_rows(rows, 1, 0))),
    )


HUGE = 1_000_000


@experiment("E24", "E31")
def precision_speedup(
    model: str = "llama-3-8b",
    hardware: str = "h100",
    base: str = "bfloat16",
    other: str = "fp8",
    rows: int = arg(1, 1, 100_000),
    tokens_per_row: int = arg(1, 1, 1_000_000),
    context: int = arg(1000, 0, 1_000_000),
    tp: Parallel = 1,
) -> Result:
    """Compare one step in two weight precisions at the datasheet's rates.

    Fewer bytes help where memory is the limit, more FLOP/s where arithmetic is. KV stays 16 bits wide.

    Returns: Base over other: above 1, the other precision is faster.
        flop_rate [x]: Peak FLOP/s of other over base, on this device.
        weight_bytes [x]: Bytes per weight of base over other, scales included.
        linear [x]: Time of the linear layers.
        linear_limit [x]: The same for a step so large that arithmetic limits both.
        step [x]: Time of the whole step, attention and the 16-bit head included.
        base_bound, other_bound
    """
    load, huge = load_of_rows(rows, tokens_per_row, context), load_of_rows(1, HUGE, 0)
    room: dict[str, int] = {"tp": tp, "rows": rows, "length": context + tokens_per_row}
    a, b = (floor_of(model, hardware, dtype, "bfloat16", **room) for dtype in (base, other))
    base_bound, other_bound = ("compute" if f.is_compute_bound(load) else "memory" for f in (a, b))
    return Result(
        flop_rate=b.peak / a.peak,
        weight_bytes=a.deployment.precision.weight_bytes / b.deployment.precision.weight_bytes,
        linear_limit=a.cost.parts(huge)["linear"] / b.cost.parts(huge)["linear"],
        linear=a.cost.parts(load)["linear"] / b.cost.parts(load)["linear"],
        step=a.cost.seconds(load) / b.cost.seconds(load),
        base_bound=base_bound,
        other_bound=other_bound,
    )
