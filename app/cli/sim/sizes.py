"""`prep sim kv`, `size`, `roofline`, `list`: answers by arithmetic, without a simulation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from rich.table import Table

from app.cli import terminal
from app.cli.options import JsonOption, option, option_groups, parse_numbers
from app.cli.sim.options import DeploymentOptions, ModelOptions, check_context, describe, rates_of
from engine.sim.cost import CostModel, StepLoad, pairs_of
from engine.sim.hardware import GPUS, this_cpu
from engine.sim.memory import Deployment, MemoryPlan, plan_memory
from engine.sim.models import MODELS
from engine.sim.sizing import Sizing, SwapOrRecompute, slo_budget, swap_or_recompute
from engine.sim.sizing import size as calculate
from prep_common.text import counted, duration, gib


@option_groups
def kv(
    options: DeploymentOptions,
    concurrency: Annotated[
        int | None, option("Also show the tokens available to each of this many requests.", min=1)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the KV cache: bytes per token, tokens that fit, concurrent sequences.

    Exit code 2 if the model does not fit: the message states the deficit and the remedies.

    \b
    Examples:
      prep sim kv --model llama-3-70b --gpu h100 --tp 8
      prep sim kv --model llama-2-7b --gpu a100-40 --concurrency 200
      prep sim kv --model llama-3-8b --gpu l4 --dtype fp8 --kv-cache-dtype fp8
    """
    deployment = options.deployment(longest=8192)
    shape, block_size = deployment.model, deployment.block_size
    plan = plan_memory(deployment)
    at_once = {}
    for length in (512, 1024, 2048, 4096, 8192, 32_768, 131_072):
        if length <= shape.max_position_embeddings:
            held = -(-shape.kv_tokens_held(length) // block_size) * block_size
            at_once[length] = plan.num_tokens // held
    tokens_each = plan.num_tokens // concurrency // block_size * block_size if concurrency else None
    if json:
        return terminal.print_json(
            {
                "model": shape.name,
                "gpu": deployment.hardware.name,
                "num_devices": deployment.num_devices,
                "num_params": shape.num_params,
                "attention": shape.attention_kind,
                "kv_bytes_per_token": deployment.kv_bytes_per_token,
                "plan": asdict(plan),
                "sequences_at_once": {str(length): count for length, count in at_once.items()},
                "concurrency": concurrency,
                "tokens_each": tokens_each,
            }
        )
    terminal.show(describe(deployment), _memory_table(deployment, plan))
    per_layer = deployment.kv_bytes_per_token / shape.num_layers
    terminal.say(
        f"KV of one token: [bold]{deployment.kv_bytes_per_token / 1024:,.1f} KiB[/] "
        f"({shape.attention_kind}: {shape.num_layers} layers x {per_layer:,.0f} bytes); "
        f"the cache holds [bold]{plan.num_tokens:,}[/] tokens"
    )
    if tokens_each is not None and concurrency is not None:
        terminal.say(f"{counted(concurrency, 'request')} at once: [bold]{tokens_each:,}[/] tokens each")
    rows = [
        (f"{length:,}", gib(shape.kv_tokens_held(length) * deployment.kv_bytes_per_token), f"{count:,}")
        for length, count in at_once.items()
    ]
    terminal.out().print(terminal.table("tokens per sequence", "KV each", "sequences at once", rows=rows))
    terminal.next_command(f"prep sim run {options.flags}", "the same under load")


def _memory_table(deployment: Deployment, plan: MemoryPlan) -> Table:
    share = f" / {deployment.num_devices} devices" if deployment.num_devices > 1 else ""
    weights = f"{deployment.model.num_params / 1e9:,.2f} B parameters in {deployment.dtype}{share}"
    blocks = f"{counted(plan.num_blocks, 'block')} of {deployment.block_size} tokens"
    rows = [
        ("memory", plan.total, deployment.hardware.source),
        ("usable", plan.usable, f"x {deployment.gpu_memory_utilization:g} gpu_memory_utilization"),
        ("- weights", plan.weights, weights),
        ("- runtime", plan.runtime, "context, communication buffers, graphs: an estimate"),
        (
            "- activations",
            plan.activations,
            f"{deployment.max_num_batched_tokens:,} tokens a step: an estimate",
        ),
        ("= KV budget", plan.kv_budget, blocks),
    ]
    shown = [(name, gib(num_bytes), why) for name, num_bytes, why in rows]
    return terminal.table("one device", "", "why", left=("why",), rows=shown)


@option_groups
def size(
    options: DeploymentOptions,
    rate: Annotated[float, option("Requests per second of the whole service.")] = 10.0,
    prompt: Annotated[int, option("Prompt tokens.", min=1)] = 1000,
    output: Annotated[int, option("Generated tokens.", min=1)] = 200,
    tpot: Annotated[float | None, option("Maximum milliseconds per output token.")] = None,
    utilisation: Annotated[float, option("Usable share of a replica's capacity.")] = 0.7,
    slo: Annotated[
        float | None, option("End-to-end limit in milliseconds; prints how many tokens fit.")
    ] = None,
    hops: Annotated[float, option("Milliseconds outside of the engine, for --slo.")] = 0.0,
    json: JsonOption = False,
) -> None:
    """Calculate the GPUs for a rate of requests (prefill, decode, KV), and the tokens within an SLO.

    No queueing: check the answer with prep sim fleet.

    \b
    Examples:
      prep sim size --model llama-3-70b --gpu h100 --tp 4 --rate 10000 --prompt 1000 --output 200
      prep sim size --rate 100 --tpot 15 --slo 500 --hops 24
    """
    deployment = options.deployment(prompt + output)
    check_context(deployment, prompt, output)
    rates = rates_of(deployment)
    work: dict[str, Any] = {
        "rate": rate,
        "prompt": prompt,
        "output": output,
        "utilisation": utilisation,
        "rates": rates,
    }
    sizing = calculate(deployment, tpot_limit=None if tpot is None else tpot / 1000, **work)
    swap = swap_or_recompute(deployment, prompt + output // 2, rates=rates)
    budget = None
    if slo is not None:
        budget = slo_budget(ttft=sizing.prefill_seconds, tpot=sizing.tpot, limit=slo / 1000, hops=hops / 1000)
    if json:
        return terminal.print_json(
            {
                "sizing": asdict(sizing),
                "slo": asdict(budget) if budget else None,
                "swap_or_recompute": {**asdict(swap), "cheaper": swap.cheaper},
            }
        )
    rows = _sizing_rows(sizing, swap, prompt, utilisation)
    if budget is not None:
        formula = "hops + TTFT + (n - 1) x TPOT, without queueing"
        rows.append((f"tokens within {slo:g} ms", f"{budget.tokens:,}", formula))
    table = terminal.table("", "", "why", left=("why",), rows=rows)
    table.show_header = False
    title = f"{rate:,g} requests/s, {counted(prompt, 'token')} in, {output:,} out"
    terminal.show(f"{title}: {describe(deployment)}", table)
    terminal.next_command(f"prep sim fleet {options.flags}", "with queues")


def _sizing_rows(
    sizing: Sizing, swap: SwapOrRecompute, prompt: int, utilisation: float
) -> list[tuple[str, str, str]]:
    wins = f"swap wins from {swap.break_even:,} tokens on" if swap.break_even else "swap never wins"
    times = f"swap {duration(swap.swap_seconds)}, recompute {duration(swap.recompute_seconds)}"
    produced = f"{sizing.kv_bytes_per_s / 1e9:,.1f} GB/s"
    return [
        ("prefill of one prompt", duration(sizing.prefill_seconds), counted(prompt, "token")),
        ("replicas for prefill", f"{sizing.prefill_replicas:,.1f}", f"rate x that / {utilisation:.0%}"),
        ("decode batch", f"{sizing.batch:,}", "what memory and --tpot allow"),
        ("time per output token", duration(sizing.tpot), "a step of that batch"),
        (
            "decodes at once",
            f"{sizing.concurrent_decodes:,.0f}",
            "Little's law: rate x tokens x time per token",
        ),
        ("replicas for decode", f"{sizing.decode_replicas:,.1f}", f"decodes / batch / {utilisation:.0%}"),
        ("[bold]GPUs[/]", f"[bold]{sizing.gpus:,}[/]", f"{sizing.gpus_per_replica} per replica"),
        ("KV held", gib(sizing.kv_bytes_at_once), "by all concurrent decodes"),
        ("KV produced", produced, "to send with separate prefill and decode"),
        ("preempted halfway", swap.cheaper, f"{times}; {wins}"),
    ]


@dataclass(frozen=True)
class Point:
    """One step. Intensity and limit: of the matrix products. Other figures: of the whole step."""

    phase: str
    tokens: int
    intensity: float
    bound: str
    seconds: float
    tokens_per_s: float
    flops_per_s: float
    """Rate of matrix products and of attention in prompts."""
    mfu: float
    mbu: float


@option_groups
def roofline(
    options: ModelOptions,
    context: Annotated[int, option("Context of each decoding request in tokens.", min=1)] = 1000,
    tokens: Annotated[str, option("Tokens per step, comma-separated.")] = "1,8,32,128,256,512,2048,8192",
    json: JsonOption = False,
) -> None:
    """Show arithmetic intensity, and whether bytes or arithmetic limit a step, by its number of tokens.

    Decode: each token belongs to another request. Prefill: all belong to one prompt. MFU and MBU are shares of the
    datasheet's arithmetic and bandwidth reached by the whole step; with --gpu cpu, of the estimated or measured ones.

    \b
    Examples:
      prep sim roofline --model llama-3-8b --gpu h100
      prep sim roofline --model shop --gpu cpu --tokens 1,4,16,64
    """
    counts = parse_numbers("--tokens", tokens, "1,32,1024")
    deployment = options.deployment(longest=1)
    cost = CostModel(deployment, rates_of(deployment))
    hardware = deployment.hardware
    compute = deployment.precision.compute_dtype(hardware)
    points = [_point(cost, phase, count, context) for phase in ("decode", "prefill") for count in counts]
    ridge = hardware.ridge(compute)
    if json:
        steps = [asdict(point) for point in points]
        return terminal.print_json({"ridge": ridge, "compute_dtype": compute, "steps": steps})
    headings = ("", "tokens", "FLOP/byte", "limit", "step", "tokens/s", "MFU", "MBU")
    table = terminal.table(*headings, left=("limit",))
    for point in points:
        work = (point.phase, f"{point.tokens:,}", f"{point.intensity:,.0f}", point.bound)
        speed = (f"{point.tokens_per_s:,.0f}", f"{point.mfu:.1%}", f"{point.mbu:.0%}")
        table.add_row(*work, duration(point.seconds), *speed)
    terminal.show(f"{describe(deployment)}: ridge at {ridge:,.0f} FLOP per byte ({compute})", table)
    terminal.next_command("prep sim run", "the effect on requests")


def _point(cost: CostModel, phase: str, count: int, context: int) -> Point:
    hardware = cost.deployment.hardware
    compute = cost.deployment.precision.compute_dtype(hardware)
    load = StepLoad(count, count, count, count * context)
    if phase == "prefill":
        load = StepLoad(1, count, 1, 0, pairs_of(0, count, cost.window), count)
    num_bytes, flops = cost.bytes_and_flops(load)
    kv, attention = cost.attention_work(load)
    time = cost.seconds(load)
    return Point(
        phase,
        count,
        intensity=flops / num_bytes,
        bound="compute" if flops / num_bytes > hardware.ridge(compute) else "memory",
        seconds=time,
        tokens_per_s=count / time,
        flops_per_s=(flops + attention) / time,
        mfu=(flops + attention) / time / hardware.peak(compute),
        mbu=(num_bytes + kv) / time / hardware.bytes_per_s,
    )


def list_(json: JsonOption = False) -> None:
    """List the models and the hardware of the simulator, with their main figures.

    Ridge: FLOP per byte above which arithmetic, not memory, is the limit. A decode step does about as many
    FLOP per byte of 16-bit weights as it has requests.

    \b
    Examples:
      prep sim list
      prep sim list --json
    """
    machines = [*GPUS.values(), this_cpu()]
    if json:
        models = [
            {
                "name": shape.name,
                "source": shape.repository,
                **terminal.pick(shape, "num_params active_params"),
                "attention": shape.attention_kind,
                "kv_elements_per_token": shape.kv_elements_per_token(),
                "max_position_embeddings": shape.max_position_embeddings,
            }
            for shape in MODELS.values()
        ]
        hardware = [
            {
                **terminal.pick(machine, "name memory_bytes bytes_per_s"),
                "flops": dict(machine.flops),
                "link": machine.link.name,
                "link_bytes_per_s": machine.link.bytes_per_s,
                "host_link": machine.host_link.name,
                "source": machine.source,
            }
            for machine in machines
        ]
        return terminal.print_json({"models": models, "hardware": hardware})
    headings = ("model", "parameters", "active", "attention", "KV per token", "positions")
    table = terminal.table(*headings, left=("attention",))
    for shape in MODELS.values():
        count = shape.num_params
        parameters = f"{count / 1e9:,.2f} B" if count >= 1e9 else f"{count / 1e6:,.2f} M"
        active = f"{shape.active_params / 1e9:.1f} B" if shape.moe else ""
        kv_size = f"{shape.kv_elements_per_token() * 2 / 1024:,.1f} KiB"
        positions = f"{shape.max_position_embeddings:,}"
        table.add_row(shape.name, parameters, active, shape.attention_kind, kv_size, positions)
    terminal.show("Models (KV in 16 bits)", table)
    columns = ("hardware", "memory", "GB/s", "16-bit TFLOP/s", "fp8", "ridge", "link")
    table = terminal.table(*columns, left=("link",))
    for machine in machines:
        wide = next(dtype for dtype in ("bfloat16", "float32") if dtype in machine.flops)
        fp8 = f"{machine.flops['fp8'] / 1e12:,.0f}" if "fp8" in machine.flops else "-"
        rate = machine.flops[wide] / 1e12
        flops = f"{rate:,.0f}" if wide == "bfloat16" else f"{rate:.2f} (fp32)"
        memory = (gib(machine.memory_bytes), f"{machine.bytes_per_s / 1e9:,.0f}")
        link = "" if machine.is_cpu else f"{machine.link.name} {machine.link.bytes_per_s / 1e9:.0f} GB/s"
        table.add_row(machine.name, *memory, flops, fp8, f"{machine.ridge(wide):,.0f}", link)
    terminal.show("Hardware (dense rates, links in one direction)", table)
    terminal.next_command("prep sim kv --model llama-3-8b --gpu l4", "what fits")
