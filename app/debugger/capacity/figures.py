"""The capacity of a service as a tree of numbers, each with formula and source.

    $/Mtok <- GPUs <- replicas <- most requests/s <- batch limit <- tokens that fit <- KV budget <- weights
                                       ^- prompt cost, decode step           ^- KV bytes per token

Built in the order in which one works it out on a whiteboard: memory, time, load, cost.
"""

from __future__ import annotations

import math

from app.debugger.capacity.figure import Capacity, gb, money, ms
from app.debugger.capacity.scenario import Scenario
from engine.core.kv_manager import KVManager
from engine.sim.cost import CostModel, Rates, StepLoad
from engine.sim.memory import Deployment, DoesNotFit, divide_memory, plan_memory, remedies
from engine.sim.models import ModelShape
from engine.sim.precision import KV_BYTES, KV_SCALE_BYTES
from engine.sim.sizing import size
from engine.sim.steady_state import Replica
from prep_common.text import counted, gib

MOST_REPLICAS = 100_000


def work_out(scenario: Scenario) -> Capacity:
    """Compute all figures; only those of memory if the model does not fit. Raises ConfigError if the deployment is
    not valid."""
    capacity = Capacity(scenario)
    deployment = scenario.deployment
    _memory(capacity, deployment)
    try:
        plan_memory(deployment)
    except DoesNotFit as error:
        capacity.problem = _does_not_fit(deployment, error)
        return capacity
    replica = Replica(scenario, _batch_limit(capacity, deployment))
    _time(capacity, deployment, replica)
    _load(capacity, replica)
    _cost(capacity, deployment)
    _judge(capacity, replica)
    return capacity


def _memory(capacity: Capacity, deployment: Deployment) -> None:
    model, precision, tp = deployment.model, deployment.precision, deployment.tp
    plan = divide_memory(deployment)
    linear = model.common_params + model.routed_params
    capacity.add(
        "params", "Parameters", model.num_params, "parameters",
        "layers x (attention + MLP + norms) + embeddings",
        f"{linear:,} in {model.num_layers} layers + {model.embedding_params:,} in embeddings "
        f"(vocabulary {model.vocab_size:,} x hidden {model.hidden_size:,}"
        f"{'' if model.tie_word_embeddings else ' x 2'})",
        ModelShape,
        "nothing: counted from the shape in config.json",
    )  # fmt: skip
    capacity.add(
        "weights", "Weights on a GPU", plan.weights, "bytes",
        "(layer parameters x bytes + embedding parameters x bytes) / tp",
        f"({linear:,} x {precision.weight_bytes:g} B + {model.embedding_params:,} x {precision.other_bytes} B) / {tp}",
        Deployment.weight_bytes.fget,  # type: ignore[attr-defined]
        "padding of quantised layouts; embeddings and head stay in 16 bits when the layers are quantised",
        ("params",),
    )  # fmt: skip
    capacity.add(
        "kv_token", "KV bytes per token on a GPU", plan.kv_bytes_per_token, "bytes",
        _kv_formula(deployment)[0], _kv_formula(deployment)[1],
        ModelShape.kv_elements_per_token,
        "if tp exceeds the kv heads, every GPU still keeps one head, as a copy",
    )  # fmt: skip
    hardware = deployment.hardware
    capacity.add(
        "usable", "Memory that the engine may use", plan.usable, "bytes",
        "GPU memory x gpu_memory_utilization",
        f"{gib(hardware.memory_bytes, 2)} x {deployment.gpu_memory_utilization:g}",
        divide_memory,
        f"other processes on the GPU. {hardware.source}",
    )  # fmt: skip
    capacity.add(
        "working", "Activations and runtime", plan.activations + plan.runtime, "bytes",
        "max(hidden states of a full step, logits of all rows) + CUDA context and graphs",
        f"{gib(plan.activations, 2)} for {deployment.max_num_batched_tokens:,} tokens or "
        f"{deployment.max_num_seqs:,} rows + {gib(plan.runtime, 2)}",
        ("engine/sim/memory.py", "def _activation_bytes"),
        "an estimate, good to a few percent of the card: vLLM and our worker measure it at start",
    )  # fmt: skip
    capacity.add(
        "kv_budget", "Left for the KV cache on a GPU", plan.kv_budget, "bytes",
        "usable - weights - activations and runtime",
        f"{gib(plan.usable, 2)} - {gib(plan.weights, 2)} - {gib(plan.activations + plan.runtime, 2)}",
        divide_memory,
        "fragmentation of the allocator",
        ("usable", "weights", "working"),
    )  # fmt: skip
    capacity.add(
        "resident", "Tokens that fit at once", plan.num_tokens, "tokens",
        "(floor(KV budget / (KV bytes per token x block size)) - 1) x block size",
        f"({plan.num_blocks:,} - 1 null block) x {deployment.block_size} tokens",
        plan_memory,
        "empty slots in each request's last block, half a block on average",
        ("kv_budget", "kv_token"),
    )  # fmt: skip


def _kv_formula(deployment: Deployment) -> tuple[str, str]:
    model, dtype = deployment.model, deployment.kv_cache_dtype
    width = f"{deployment.precision.other_bytes if dtype == 'auto' else KV_BYTES[dtype]} B"
    scales = " + 4 B scale per head, for K and for V" if dtype in KV_SCALE_BYTES else ""
    if model.mla is not None:
        latent, rope = model.mla.kv_lora_rank, model.mla.qk_rope_head_dim
        return (
            "layers x (latent + rope) x bytes   (MLA: one vector instead of keys and values)",
            f"{model.num_layers} x ({latent} + {rope}) x {width}",
        )
    heads = max(1, model.num_kv_heads // deployment.tp)
    return (
        "layers x 2 (K and V) x kv heads on this GPU x head dim x bytes" + (" + scales" if scales else ""),
        f"{model.num_layers} x 2 x {heads} x {model.head_dim} x {width}{scales}",
    )


def _batch_limit(capacity: Capacity, deployment: Deployment) -> float:
    """The maximum batch, by memory and by setting."""
    scenario, model = capacity.scenario, deployment.model
    held = model.kv_tokens_held(scenario.prompt + scenario.output // 2)
    shared = min(scenario.hit_tokens, held)
    capacity.add(
        "held", "Tokens that a running request holds", held, "tokens",
        "prompt + output / 2" + (", at most the sliding window" if model.sliding_window else ""),
        f"{scenario.prompt:,} + {scenario.output:,} / 2",
        ModelShape.kv_tokens_held,
        "spread: requests near their end hold more, and with random lengths long ones stay longer",
    )  # fmt: skip
    resident = capacity.value("resident")
    prefixes = scenario.num_prefixes * shared
    by_memory = max(1.0, (resident - prefixes) / max(1, held - shared))
    capacity.add(
        "by_memory", "Requests that fit into memory at once", by_memory, "requests",
        "(tokens that fit - shared prefixes) / (tokens held - shared part)",
        f"({resident:,.0f} - {scenario.num_prefixes} x {shared:,}) / ({held:,} - {shared:,})",
        size,
        "a mean, not a guarantee: above it the scheduler preempts. vLLM's boot log counts sequences of "
        f"max_model_len instead: here {resident / deployment.max_model_len:,.1f} of {deployment.max_model_len:,}",
        ("resident", "held"),
    )  # fmt: skip
    return capacity.add(
        "batch_limit", "Largest batch", min(by_memory, deployment.max_num_seqs), "requests",
        "min(requests that fit into memory, max_num_seqs)",
        f"min({by_memory:,.1f}, {deployment.max_num_seqs:,})",
        ("engine/config/scheduler.py", "def default_batch_sizes"),
        "max_num_seqs is vLLM's default for the card",
        ("by_memory",),
    )  # fmt: skip


def _time(capacity: Capacity, deployment: Deployment, replica: Replica) -> None:
    scenario, hardware, cost = capacity.scenario, deployment.hardware, replica.cost
    one = StepLoad(1, 1, 1, replica.held)
    moved = cost.bytes_and_flops(one)[0] + cost.attention_work(one)[0]
    capacity.add(
        "tpot_floor", "TPOT floor: a single request, every byte at full bandwidth",
        moved / hardware.bytes_per_s, "seconds",
        "(weights read per token + KV of the context) / memory bandwidth",
        f"{gb(moved)} / {hardware.bytes_per_s / 1e9:,.0f} GB/s",
        CostModel.bytes_and_flops,
        "kernels reach 75-80 % of the bandwidth; launching, sampling and tensor-parallel messages come on top. "
        "A mixture of experts reads only the experts chosen",
        ("weights", "kv_token", "held"),
    )  # fmt: skip
    flops = 2 * (deployment.model.common_params + deployment.model.active_routed_params) * replica.computed
    peak = hardware.peak(deployment.precision.compute_dtype(hardware)) * deployment.tp
    hits = scenario.hit_tokens
    capacity.add(
        "computed", "Prompt tokens computed", replica.computed, "tokens",
        "prompt - whole blocks of the common prefix",
        f"{scenario.prompt:,} - {hits:,} of {scenario.prefix_len:,} shared tokens",
        KVManager.match,
        "the first request with each prefix has no hit; evicted blocks are recomputed",
    )  # fmt: skip
    capacity.add(
        "prefill_floor", "Prefill floor: one prompt at the datasheet's peak", flops / peak, "seconds",
        "2 x P x n / FLOP/s",
        f"2 x {flops / 2 / replica.computed:,.0f} x {replica.computed:,} / {peak / 1e12:,.0f} TFLOP/s",
        Rates.of,
        "attention's own arithmetic, which grows with n squared; GEMMs reach about 70 % of the peak",
        ("computed", "params"),
    )  # fmt: skip
    batch = replica.batch_limit
    capacity.add(
        "full_step", "Decode step of the largest batch", replica.decode_step(batch), "seconds",
        "roofline: linear layers + head + attention over all contexts + messages + overhead",
        f"{batch:,.0f} rows x {replica.held:,} tokens of context: {_parts(replica, batch)}",
        CostModel.seconds,
        "efficiencies are typical values of published measurements, not of your kernels",
        ("batch_limit", "weights", "kv_token", "held"),
    )  # fmt: skip
    capacity.add(
        "full_prompt", "Time that a prompt adds to steps of the largest batch", replica.prompt_cost(batch), "seconds",
        "step(decodes + prompt) - step(decodes)" + (" x chunks" if replica.num_chunks(batch) > 1 else ""),
        f"{replica.computed:,} tokens in {counted(replica.num_chunks(batch), 'step')} of at most "
        f"{deployment.max_num_batched_tokens:,}",
        Replica.prompt_cost,
        "at small batches the weights are read for the decodes anyway, so the first few hundred tokens are almost free",
        ("computed", "prefill_floor"),
    )  # fmt: skip


def _parts(replica: Replica, batch: float) -> str:
    rows = StepLoad(batch, batch, batch, batch * replica.held)  # type: ignore[arg-type]
    return " + ".join(f"{name} {ms(part)}" for name, part in replica.cost.parts(rows).items() if part)


def _load(capacity: Capacity, replica: Replica) -> None:
    scenario = capacity.scenario
    most, batch = replica.most_requests_per_s(), replica.batch_limit
    capacity.add(
        "most", "Maximum requests per second of a replica", most, "requests/s",
        "1 / (prompt cost + (output - 1) x decode step / batch)",
        f"1 / ({ms(replica.prompt_cost(batch))} + {scenario.output - 1:,} x {ms(replica.decode_step(batch))} / "
        f"{batch:,.1f})",
        size,
        "a replica at this rate is always full, and its queue has no bound",
        ("full_prompt", "full_step", "batch_limit"),
    )  # fmt: skip
    by_rate = math.ceil(scenario.rate / (scenario.headroom * most) - 1e-9)
    replicas = scenario.replicas or max(1, math.ceil(scenario.rate / planned_rate(scenario, replica) - 1e-9))
    needed = f"ceil({scenario.rate:,.6g} / ({scenario.headroom:g} x {most:,.2f})) = {by_rate}"
    if scenario.replicas:
        filled = f"{replicas} as you set it; by the rate {needed}"
    else:
        filled = needed + (f", and {replicas} to meet the limits" if replicas > max(1, by_rate) else "")
    capacity.add(
        "replicas", "Replicas", replicas, "replicas",
        "ceil(rate / (headroom x most)), more if TTFT or TPOT would miss their limits",
        filled,
        size,
        "uneven routing, which needs more replicas; failures: add the number that may be down at once",
        ("most",),
    )  # fmt: skip
    state = capacity.state = replica.at(scenario.rate / replicas)
    capacity.add(
        "rate", "Requests per second on each replica", state.rate, "requests/s",
        "rate / replicas", f"{scenario.rate:,.6g} / {replicas}", work_out,
        "bursts: arrivals are taken as Poisson", ("replicas",),
    )  # fmt: skip
    capacity.add(
        "utilisation", "Utilisation of a replica", state.rate / most, "share",
        "requests per second / most", f"{state.rate:,.3g} / {most:,.3g}", work_out,
        "batch size: a replica that is always busy with small batches has capacity left", ("rate", "most"),
    )  # fmt: skip
    capacity.add(
        "tpot", "Time per output token (TPOT)", state.step, "seconds",
        "decode step at this load / (1 - rate x prompt cost)" if state.is_stable else "batch / most / output",
        f"{ms(state.decode_step)} / (1 - {state.rate:,.3g}/s x {ms(state.prompt_cost)})"
        if state.is_stable
        else f"{batch:,.1f} / {most:,.2f} / {scenario.output:,}",
        Replica.at,
        "variation: tokens that share a step with a prompt take longer (the p99). Where prompts take most of the time, "
        "clustered arrivals add about 20 %; the simulation shows it",
        ("running", "full_prompt", "rate"),
    )  # fmt: skip
    capacity.add(
        "running", "Requests running at once", state.running, "requests",
        "Little: requests per second x (step of the first token + (output - 1) x TPOT)",
        f"{state.rate:,.3g}/s x ({ms(state.ttft - state.wait)} + {scenario.output - 1:,} x {ms(state.step)})"
        if state.is_stable
        else f"the largest batch, {batch:,.1f}: all other requests wait",
        Replica.at,
        "variation: the number at any time is about Poisson, so it varies by its square root",
        ("rate", "ttft"),
    )  # fmt: skip
    capacity.add(
        "ttft", "Time to first token (TTFT)", state.ttft, "seconds",
        "rest of the current step + own step: decodes + own prompt + prompts that arrived with it",
        f"{ms(state.wait)} + {ms(state.ttft - state.wait)}" if state.is_stable else "grows as long as the load lasts",
        Replica.at,
        "tokenizing, HTTP, the router's queue; waiting for free blocks or a place in the batch",
        ("rate", "full_prompt"),
    )  # fmt: skip
    resident = capacity.value("resident")
    shared = min(scenario.hit_tokens, replica.held)
    beginnings = scenario.num_prefixes * (1 - math.exp(-state.running / scenario.num_prefixes))
    tokens = state.running * (replica.held - shared) + beginnings * shared
    capacity.add(
        "kv_use", "KV cache in use by running requests", min(1.0, tokens / resident), "share",
        "(requests running x own tokens + prefixes in use x shared tokens) / tokens that fit",
        f"({state.running:,.2f} x {replica.held - shared:,} own + {beginnings:,.2f} x {shared:,} shared) / "
        f"{resident:,.0f}",
        KVManager.usage.fget,  # type: ignore[attr-defined]
        "cached blocks without owner count as free",
        ("running", "held", "resident"),
    )  # fmt: skip


def planned_rate(scenario: Scenario, replica: Replica) -> float:
    """Return the requests per second for which one replica is planned: within the headroom and both limits.

    If not even a single request meets the limits, the headroom alone decides.
    """

    def meets(rate: float) -> bool:
        state = replica.at(rate)
        return 1000 * state.ttft <= scenario.ttft_ms and 1000 * state.step <= scenario.tpot_ms

    low, high = scenario.rate / MOST_REPLICAS, scenario.headroom * replica.most_requests_per_s()
    if meets(high) or not meets(low):
        return high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def _cost(capacity: Capacity, deployment: Deployment) -> None:
    scenario = capacity.scenario
    replicas = capacity.value("replicas")
    gpus = capacity.add(
        "gpus", "GPUs", replicas * deployment.num_devices, "GPUs",
        "replicas x tp", f"{replicas:,.0f} x {deployment.num_devices}", size,
        "spares, and that GPUs are rented in machines of eight", ("replicas",),
    )  # fmt: skip
    hourly = capacity.add(
        "hourly", "Cost per hour", gpus * scenario.price, scenario.currency,
        "GPUs x price", f"{gpus:,.0f} x {money(scenario.price, scenario.currency)}",
        "your price (an assumption by default)",
        "CPUs, disks, network, staff", ("gpus",),
    )  # fmt: skip
    served = scenario.rate * scenario.output * 3600
    if capacity.state and not capacity.state.is_stable:
        served = min(served, replicas * capacity.value("most") * scenario.output * 3600)
    capacity.add(
        "per_mtok", "Cost per million output tokens", hourly / served * 1e6, scenario.currency,
        "cost per hour / output tokens per hour",
        f"{money(hourly, scenario.currency)} / ({served / 1e6:,.2f} million tokens)",
        work_out,
        "prompt tokens, which many price lists bill too; hours with less traffic at the same GPU cost",
        ("hourly", "rate", "utilisation", "tpot", "ttft", "kv_use", "tpot_floor"),
    )  # fmt: skip


def _judge(capacity: Capacity, replica: Replica) -> None:
    scenario, state = capacity.scenario, capacity.state
    assert state is not None
    idle = replica.at(1e-9)
    for name, limit, value, least in (
        ("TTFT", scenario.ttft_ms, state.ttft, idle.ttft),
        ("TPOT", scenario.tpot_ms, state.step, idle.step),
    ):
        if not state.is_stable:
            capacity.verdicts = [
                f"Too few replicas: {state.rate:,.3g} requests/s arrive at each, which serves at most "
                f"{capacity.value('most'):,.3g}. The queue grows by {state.rate - capacity.value('most'):,.2g} "
                "requests a second, and TTFT with it."
            ]
        elif 1000 * value <= limit:
            capacity.verdicts.append(f"{name} of {ms(value)} meets its limit of {limit:g} ms.")
        elif 1000 * least > limit:
            capacity.verdicts.append(
                f"No number of replicas helps: {name} cannot be met. A single request alone takes {ms(least)}, the "
                f"limit is {limit:g} ms. More tensor parallelism, a narrower dtype, a faster GPU"
                + (" or a shorter prompt do." if name == "TTFT" else " or a smaller model do.")
            )
        else:
            capacity.verdicts.append(f"{name} of {ms(value)} misses its limit of {limit:g} ms.")


_HELPS = {
    "--max-model-len": "max_model_len",
    "--dtype": "weights in",
    "--tp": "tensor parallel",
    "--gpu": "GPU",
}


def _does_not_fit(deployment: Deployment, error: DoesNotFit) -> str:
    """The error in the page's words instead of the command line's."""
    first = str(error).partition(" What would fit")[0].partition(" Nothing we know")[0]
    helps = [f"{_HELPS[option]} {value}" for option, value in map(str.split, remedies(deployment))]
    if not helps:
        return f"{first} Nothing we know of would make it fit."
    return f"{first} What would fit, each alone: {'; '.join(helps)}."
