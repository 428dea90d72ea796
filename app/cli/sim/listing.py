"""`prep sim list`: named models and hardware."""

from __future__ import annotations

from app.cli import terminal
from app.cli.sim.options import Json
from common.text import gib


def list_(json: Json = False) -> None:
    """List the models and the hardware of the simulator, with their main figures.

    Ridge: FLOP per byte above which arithmetic, not memory, is the limit. A decode step does about as many
    FLOP per byte of 16-bit weights as it has requests.

    \b
    Examples:
      prep sim list
      prep sim list --json
    """
    from engine.sim.hardware import GPUS, this_cpu
    from engine.sim.models import MODELS

    machines = [*GPUS.values(), this_cpu()]
    if json:
        terminal.print_json(
            {
                "models": [
                    {
                        "name": shape.name,
                        "source": shape.repository,
                        "num_params": shape.num_params,
                        "active_params": shape.active_params,
                        "attention": shape.attention_kind,
                        "kv_elements_per_token": shape.kv_elements_per_token(),
                        "max_position_embeddings": shape.max_position_embeddings,
                    }
                    for shape in MODELS.values()
                ],
                "hardware": [
                    {
                        "name": machine.name,
                        "memory_bytes": machine.memory_bytes,
                        "bytes_per_s": machine.bytes_per_s,
                        "flops": dict(machine.flops),
                        "link": machine.link.name,
                        "link_bytes_per_s": machine.link.bytes_per_s,
                        "host_link": machine.host_link.name,
                        "source": machine.source,
                    }
                    for machine in machines
                ],
            }
        )
        return
    table = terminal.table(
        "model", "parameters", "active", "attention", "KV per token", "positions", left=("attention",)
    )
    for shape in MODELS.values():
        active = f"{shape.active_params / 1e9:.1f} B" if shape.moe else ""
        table.add_row(
            shape.name,
            _count(shape.num_params),
            active,
            shape.attention_kind,
            f"{shape.kv_elements_per_token() * 2 / 1024:,.1f} KiB",
            f"{shape.max_position_embeddings:,}",
        )
    terminal.show("Models (KV in 16 bits)", table)
    table = terminal.table(
        "hardware", "memory", "GB/s", "16-bit TFLOP/s", "fp8", "ridge", "link", left=("link",)
    )
    for machine in machines:
        wide = next(dtype for dtype in ("bfloat16", "float32") if dtype in machine.flops)
        fp8 = f"{machine.flops['fp8'] / 1e12:,.0f}" if "fp8" in machine.flops else "-"
        rate = machine.flops[wide] / 1e12
        table.add_row(
            machine.name,
            gib(machine.memory_bytes),
            f"{machine.bytes_per_s / 1e9:,.0f}",
            f"{rate:,.0f}" if wide == "bfloat16" else f"{rate:.2f} (fp32)",
            fp8,
            f"{machine.ridge(wide):,.0f}",
            "" if machine.is_cpu else f"{machine.link.name} {machine.link.bytes_per_s / 1e9:.0f} GB/s",
        )
    terminal.show("Hardware (dense rates, links in one direction)", table)
    terminal.next_command("prep sim kv --model llama-3-8b --gpu l4", "what fits")


def _count(number: int) -> str:
    return f"{number / 1e9:,.2f} B" if number >= 1e9 else f"{number / 1e6:,.2f} M"
