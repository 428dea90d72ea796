"""`prep sim roofline`: the limit of a step by its number of tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.option_groups import option_groups
from app.cli.sim.options import Json, ModelOptions, describe
from common.text import duration

if TYPE_CHECKING:
    from engine.sim.cost import CostModel


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
    context: Annotated[int, typer.Option(min=1, help="Context of each decoding request in tokens.")] = 1000,
    tokens: Annotated[
        str, typer.Option(help="Tokens per step, comma-separated.")
    ] = "1,8,32,128,256,512,2048,8192",
    json: Json = False,
) -> None:
    """Show arithmetic intensity, and whether bytes or arithmetic limit a step, by its number of tokens.

    Decode: each token belongs to another request. Prefill: all belong to one prompt. MFU and MBU are shares of the
    datasheet's arithmetic and bandwidth reached by the whole step; with --gpu cpu, of the estimated or measured ones.

    \b
    Examples:
      prep sim roofline --model llama-3-8b --gpu h100
      prep sim roofline --model shop --gpu cpu --tokens 1,4,16,64
    """
    from engine.sim.calibration import calibrated_rates
    from engine.sim.cost import CostModel

    try:
        counts = [int(part) for part in tokens.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise terminal.Problem(
            f"--tokens must be whole numbers of at least 1, got {tokens!r}", next_step="--tokens 1,32,1024"
        )
    deployment = options.deployment(longest=1)
    cost = CostModel(deployment, calibrated_rates(deployment))
    hardware = deployment.hardware
    compute = deployment.precision.compute_dtype(hardware)
    points = [_point(cost, phase, count, context) for phase in ("decode", "prefill") for count in counts]
    if json:
        steps = [asdict(point) for point in points]
        terminal.print_json({"ridge": hardware.ridge(compute), "compute_dtype": compute, "steps": steps})
        return
    table = terminal.table(
        "", "tokens", "FLOP/byte", "limit", "step", "tokens/s", "MFU", "MBU", left=("limit",)
    )
    for point in points:
        table.add_row(
            point.phase,
            f"{point.tokens:,}",
            f"{point.intensity:,.0f}",
            point.bound,
            duration(point.seconds),
            f"{point.tokens_per_s:,.0f}",
            f"{point.mfu:.1%}",
            f"{point.mbu:.0%}",
        )
    terminal.show(
        f"{describe(deployment)}: ridge at {hardware.ridge(compute):,.0f} FLOP per byte ({compute})", table
    )
    terminal.next_command("prep sim run", "the effect on requests")


def _point(cost: CostModel, phase: str, count: int, context: int) -> Point:
    from engine.sim.cost import StepLoad, pairs_of

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
