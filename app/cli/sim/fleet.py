"""`prep sim fleet`: replicas, routers, pools, autoscaling."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.option_groups import option_groups
from app.cli.sim.options import DeploymentOptions, Json, WorkOptions, describe
from app.cli.sim.run import show_report
from common.text import duration, gib

if TYPE_CHECKING:
    from engine.sim.autoscaler import AutoscalerConfig, Schedule
    from engine.sim.disaggregation import DisaggregatedReport
    from engine.sim.engine import SimEngine
    from engine.sim.fleet import FleetReport
    from engine.sim.router import ReplicaReport


@dataclass(frozen=True)
class PoolOptions:
    """Replicas, pools and router."""

    replicas: Annotated[int, typer.Option(min=1, help="Replicas at the start.")] = 4
    router: Annotated[
        str,
        typer.Option(
            help="round-robin, least-loaded, token-aware, prefix-affinity, consistent-hash or bounded-load."
        ),
    ] = "least-loaded"
    prefill_replicas: Annotated[
        int, typer.Option(min=0, help="Replicas of a prefill pool; with --decode-replicas.")
    ] = 0
    decode_replicas: Annotated[int, typer.Option(min=0, help="Replicas of a decode pool.")] = 0
    link: Annotated[str, typer.Option(help="Link for KV: ib-ndr, ib-hdr, nvlink4, ethernet-100g, ...")] = (
        "ib-ndr"
    )


@dataclass(frozen=True)
class ScalingOptions:
    """The autoscaler. All fields but the first and the last are those of AutoscalerConfig."""

    autoscale: Annotated[
        str | None, typer.Option(help="Signal: queue, load (unfinished), kv (usage) or rate, per replica.")
    ] = None
    out_above: Annotated[float, typer.Option(help="Add a replica when the signal is above this.")] = 20.0
    in_below: Annotated[float, typer.Option(help="Drain one when it is below this.")] = 5.0
    min_replicas: Annotated[int, typer.Option(min=1)] = 1
    max_replicas: Annotated[int, typer.Option(min=1)] = 16
    sustain_out: Annotated[float, typer.Option(help="Seconds above that before adding.")] = 30.0
    sustain_in: Annotated[float, typer.Option(help="Seconds below that before draining.")] = 60.0
    cooldown_out: Annotated[float, typer.Option(help="Minimum seconds between a change and adding.")] = 120.0
    cooldown_in: Annotated[float, typer.Option(help="Minimum seconds between a change and draining.")] = 600.0
    cold_start: Annotated[float, typer.Option(help="Seconds until a new replica serves.")] = 120.0
    warm_start: Annotated[float, typer.Option(help="Seconds until a replica of the warm pool serves.")] = 5.0
    warm_pool: Annotated[int, typer.Option(min=0, help="Loaded replicas in the warm pool.")] = 0
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="START-END:N: at least N replicas between two times in seconds; repeatable."),
    ] = None

    def config(self) -> AutoscalerConfig | None:
        from engine.sim.autoscaler import AutoscalerConfig

        settings: dict[str, Any] = dict(vars(self))
        signal, schedules = settings.pop("autoscale"), settings.pop("schedule")
        if not signal:
            return None
        return AutoscalerConfig(signal, **settings, schedules=tuple(map(_schedule, schedules or ())))


@option_groups
def fleet(
    options: DeploymentOptions,
    pools: PoolOptions,
    scaling: ScalingOptions,
    traffic: WorkOptions = WorkOptions(rate=20.0, num_requests=2000),  # noqa: B008 - frozen
    phases: Annotated[
        str | None, typer.Option(help="Instead of --rate: SECONDS:RATE,SECONDS:RATE,..., repeated.")
    ] = None,
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(min=2, help="KV blocks of each replica; by default as many as fit.")
    ] = None,
    enable_prefix_caching: Annotated[
        bool, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching")
    ] = True,
    json: Json = False,
) -> None:
    """Simulate replicas behind a router: hit rates, balance, prefill and decode pools, autoscaling.

    \b
    Examples:
      prep sim fleet --replicas 4 --router prefix-affinity --num-prefixes 40 --prefix-len 800
      prep sim fleet --prefill-replicas 2 --decode-replicas 2 --link ib-ndr --prompt 4000
      prep sim fleet --replicas 2 --autoscale load --phases 600:5,600:40 --num-requests 20000
    """
    from engine.sim.calibration import calibrated_rates
    from engine.sim.memory import plan_memory
    from engine.sim.router import make_router
    from engine.sim.run import make_engine

    if bool(pools.prefill_replicas) != bool(pools.decode_replicas):
        raise terminal.Problem("a fleet of pools needs both --prefill-replicas and --decode-replicas")
    if pools.prefill_replicas and scaling.autoscale:
        raise terminal.Problem(
            "--autoscale works on one pool; leave --prefill-replicas and --decode-replicas out"
        )
    deployment = options.deployment(traffic.longest)
    plan = plan_memory(deployment)
    rates = calibrated_rates(deployment)

    def engine() -> SimEngine:
        return make_engine(
            deployment,
            plan=plan,
            rates=rates,
            num_blocks=num_gpu_blocks_override,
            enable_prefix_caching=enable_prefix_caching,
        )

    work = traffic.work(deployment.max_model_len, phases)
    title = f"{describe(deployment)}, {pools.router}"
    with terminal.progress(traffic.total, "requests") as advance:

        def tell(number: int) -> None:
            advance(done=number)

        if pools.prefill_replicas:
            from engine.sim.disaggregation import DisaggregatedFleet
            from engine.sim.hardware import get_link

            apart = DisaggregatedFleet(
                engine,
                engine,
                pools.prefill_replicas,
                pools.decode_replicas,
                make_router(pools.router),
                make_router(pools.router),
                get_link(pools.link),
            )
            _show_pools(apart.run(work, tell), title, gib(plan.kv_budget), json)
            return
        from engine.sim.fleet import Fleet

        report = Fleet(engine, pools.replicas, make_router(pools.router), scaling.config()).run(work, tell)
    _show_fleet(report, title, gib(plan.kv_budget), json)


def _schedule(text: str) -> Schedule:
    from engine.sim.autoscaler import Schedule

    try:
        span, least = text.split(":")
        start, end = span.split("-")
        return Schedule(float(start), float(end), int(least))
    except ValueError:
        raise terminal.Problem(
            f"--schedule must look like START-END:N in seconds, got {text!r}",
            next_step="--schedule 3600-7200:4",
        ) from None


def _show_fleet(report: FleetReport, title: str, kv: str, json: bool) -> None:
    if json:
        terminal.print_json(asdict(report))
        return
    terminal.out().print(f"[bold]{title}[/]", soft_wrap=True)
    show_report(report.run, f"{kv} per device")
    _show_replicas({"replica": report.replicas}, report.run.seconds)
    console = terminal.out()
    console.print(f"busiest replica over the mean: [bold]{report.balance:.2f}[/]")
    if report.events:
        for event in report.events[:40]:
            signal = f"   signal {event.signal:.2f}" if event.kind in ("out", "in") else ""
            console.print(
                f"  [dim]{event.time:>9,.0f} s[/]  {event.kind:<7} replica {event.replica}   "
                f"{event.replicas} serving or starting{signal}",
                soft_wrap=True,
            )
        if len(report.events) > 40:
            console.print(f"  [dim]and {len(report.events) - 40} more events (--json has them)[/]")
        reaction = duration(report.reaction_seconds) if report.reaction_seconds is not None else "-"
        console.print(
            f"out {report.num_out}, in {report.num_in}, undone within 15 minutes {report.thrash}; "
            f"{report.replica_seconds / 3600:,.1f} replica hours; overloaded and unable to grow "
            f"{duration(report.overload_seconds)}; new replicas serve after {reaction}",
            soft_wrap=True,
        )
    terminal.next_command("prep sim fleet --help", "other routers, pools, autoscaling")


def _show_pools(report: DisaggregatedReport, title: str, kv: str, json: bool) -> None:
    if json:
        terminal.print_json(asdict(report))
        return
    terminal.out().print(f"[bold]{title}[/]", soft_wrap=True)
    show_report(report.run, f"{kv} per device")
    _show_replicas({"prefill": report.prefill, "decode": report.decode}, report.run.seconds)
    terminal.out().print(
        f"{report.transfers:,} transfers, {gib(report.transfer_bytes)}, "
        f"{duration(report.mean_transfer_seconds)} each on average",
        soft_wrap=True,
    )
    terminal.next_command("prep sim fleet --replicas N", "the same GPUs without pools")


def _show_replicas(pools: dict[str, list[ReplicaReport]], total: float) -> None:
    table = terminal.table("", "requests", "output tokens", "prefix hits", "busy", "preemptions")
    for name, members in pools.items():
        for each in members:
            paid = (each.stopped if each.stopped is not None else total) - each.started
            table.add_row(
                f"{name} {each.index}",
                f"{each.num_requests:,}",
                f"{each.output_tokens:,}",
                f"{each.prefix_cache_hit_rate:.1%}",
                f"{each.busy_seconds / paid:.0%}" if paid > 0 else "-",
                f"{each.preemptions:,}",
            )
    terminal.out().print(table)
