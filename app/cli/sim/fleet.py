"""`prep sim fleet`: replicas, routers, pools, autoscaling."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, make_folder_of, option, option_groups
from app.cli.sim.options import DeploymentOptions, WorkOptions, describe, rates_of
from app.cli.sim.run import show_report
from engine.sim.autoscaler import AutoscalerConfig, Schedule
from engine.sim.disaggregation import DisaggregatedFleet, DisaggregatedReport
from engine.sim.engine import SimEngine
from engine.sim.fleet import Fleet, FleetReport
from engine.sim.hardware import get_link
from engine.sim.memory import plan_memory
from engine.sim.route_log import RouteLog
from engine.sim.router import ReplicaReport, make_router
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest, Tell
from prep_common.text import duration, gib

INTERVAL = 0.05
"""Seconds between looks at the replicas for --routes, at first."""


@dataclass(frozen=True)
class PoolOptions:
    """Replicas, pools and router."""

    replicas: Annotated[int, option("Replicas at the start.", min=1)] = 4
    router: Annotated[
        str,
        option(
            "round-robin, least-loaded, two-choices, token-aware, prefix-affinity, consistent-hash or bounded-load."
        ),
    ] = "least-loaded"
    prefill_replicas: Annotated[int, option("Replicas of a prefill pool; with --decode-replicas.", min=0)] = 0
    decode_replicas: Annotated[int, option("Replicas of a decode pool.", min=0)] = 0
    link: Annotated[str, option("Link for KV: ib-ndr, ib-hdr, nvlink4, ethernet-100g, ...")] = "ib-ndr"


@dataclass(frozen=True)
class ScalingOptions:
    """The autoscaler. All fields but the first and the last are those of AutoscalerConfig."""

    autoscale: Annotated[
        str | None, option("Signal: queue, load (unfinished), kv (usage) or rate, per replica.")
    ] = None
    out_above: Annotated[float, option("Add a replica when the signal is above this.")] = 20.0
    in_below: Annotated[float, option("Drain one when it is below this.")] = 5.0
    min_replicas: Annotated[int, option(min=1)] = 1
    max_replicas: Annotated[int, option(min=1)] = 16
    sustain_out: Annotated[float, option("Seconds above that before adding.")] = 30.0
    sustain_in: Annotated[float, option("Seconds below that before draining.")] = 60.0
    cooldown_out: Annotated[float, option("Minimum seconds between a change and adding.")] = 120.0
    cooldown_in: Annotated[float, option("Minimum seconds between a change and draining.")] = 600.0
    cold_start: Annotated[float, option("Seconds until a new replica serves.")] = 120.0
    warm_start: Annotated[float, option("Seconds until a replica of the warm pool serves.")] = 5.0
    warm_pool: Annotated[int, option("Loaded replicas in the warm pool.", min=0)] = 0
    schedule: Annotated[
        list[str] | None, option("START-END:N: at least N replicas between two times in seconds; repeatable.")
    ] = None

    def config(self) -> AutoscalerConfig | None:
        settings: dict[str, Any] = dict(vars(self))
        signal, schedules = settings.pop("autoscale"), settings.pop("schedule")
        parsed = tuple(map(_schedule, schedules or ()))
        return AutoscalerConfig(signal, **settings, schedules=parsed) if signal else None


@option_groups
def fleet(
    options: DeploymentOptions,
    pools: PoolOptions,
    scaling: ScalingOptions,
    traffic: WorkOptions = WorkOptions(rate=20.0, num_requests=2000),  # noqa: B008 - frozen
    phases: Annotated[
        str | None, option("Instead of --rate: SECONDS:RATE,SECONDS:RATE,..., repeated.")
    ] = None,
    num_gpu_blocks_override: Annotated[
        int | None, option("KV blocks of each replica; by default as many as fit.", min=2)
    ] = None,
    enable_prefix_caching: Annotated[
        bool, option("", "--enable-prefix-caching/--no-enable-prefix-caching")
    ] = True,
    routes: Annotated[
        Path | None,
        option("Write each request's replica, with the reason, and the levels of all replicas to this file."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Simulate replicas behind a router: hit rates, balance, prefill and decode pools, autoscaling.

    \b
    Examples:
      prep sim fleet --replicas 4 --router prefix-affinity --num-prefixes 40 --prefix-len 800
      prep sim fleet --router prefix-affinity --num-prefixes 40 --prefix-len 800 --routes run.json
      prep sim fleet --replicas 1000 --router two-choices --rate 8000 --num-requests 100000
      prep sim fleet --prefill-replicas 2 --decode-replicas 2 --link ib-ndr --prompt 4000
      prep sim fleet --replicas 2 --autoscale load --phases 600:5,600:40 --num-requests 20000
    """
    if bool(pools.prefill_replicas) != bool(pools.decode_replicas):
        raise terminal.Problem("a fleet of pools needs both --prefill-replicas and --decode-replicas")
    if pools.prefill_replicas and scaling.autoscale:
        raise terminal.Problem(
            "--autoscale works on one pool; leave --prefill-replicas and --decode-replicas out"
        )
    if pools.prefill_replicas and routes:
        raise terminal.Problem(
            "--routes records one pool; leave --prefill-replicas and --decode-replicas out, or --routes"
        )
    make_folder_of(routes)
    deployment = options.deployment(traffic.longest)
    work = traffic.work(deployment, phases)
    plan = plan_memory(deployment)
    rates = rates_of(deployment)

    def engine() -> SimEngine:
        caching = enable_prefix_caching
        return make_engine(
            deployment,
            plan=plan,
            rates=rates,
            num_blocks=num_gpu_blocks_override,
            enable_prefix_caching=caching,
        )

    log = RouteLog(pools.router, INTERVAL) if routes else None
    with terminal.progress(traffic.total, "requests") as advance:

        def tell(number: int) -> None:
            advance(done=number)

        report = _run(_build(engine, pools, scaling, log), work, tell)
    if log is not None and routes is not None:
        _save(log, routes)
    if json:
        return terminal.print_json(asdict(report))
    terminal.say(f"[bold]{describe(deployment)}, {pools.router}[/]")
    show_report(report.run, f"{gib(plan.kv_budget)} per device")
    if isinstance(report, DisaggregatedReport):
        _show_pools(report)
    else:
        _show_fleet(report)
    if routes:
        terminal.next_command("prep app --page capacity", f"then View: Router, and open {routes}")


def _build(
    engine: Callable[[], SimEngine], pools: PoolOptions, scaling: ScalingOptions, log: RouteLog | None
) -> Fleet | DisaggregatedFleet:
    link = get_link(pools.link)
    if not pools.prefill_replicas:
        return Fleet(engine, pools.replicas, make_router(pools.router), scaling.config(), log=log)
    sizes = (pools.prefill_replicas, pools.decode_replicas)
    routers = (make_router(pools.router), make_router(pools.router))
    return DisaggregatedFleet(engine, engine, *sizes, *routers, link)


def _run(
    fleet: Fleet | DisaggregatedFleet, work: Iterable[SimRequest], tell: Tell
) -> FleetReport | DisaggregatedReport:
    gc.collect()
    gc.freeze()  # collections would visit the blocks of all replicas, again and again
    try:
        return fleet.run(work, tell)
    finally:
        gc.unfreeze()


def _save(log: RouteLog, path: Path) -> None:
    try:
        log.save(path)
    except OSError as error:
        raise terminal.Problem(f"cannot write {path}: {error.strerror}") from None


def _schedule(text: str) -> Schedule:
    try:
        span, least = text.split(":")
        start, end = span.split("-")
        return Schedule(float(start), float(end), int(least))
    except ValueError:
        raise terminal.Problem(
            f"--schedule must look like START-END:N in seconds, got {text!r}", "--schedule 3600-7200:4"
        ) from None


def _show_fleet(report: FleetReport) -> None:
    _show_replicas({"replica": report.replicas}, report.run.seconds)
    console = terminal.out()
    console.print(f"busiest replica over the mean: [bold]{report.balance:.2f}[/]")
    if report.events:
        for event in report.events[:40]:
            signal = f"   signal {event.signal:.2f}" if event.kind in ("out", "in") else ""
            terminal.say(
                f"  [dim]{event.time:>9,.0f} s[/]  {event.kind:<7} replica {event.replica}   "
                f"{event.replicas} serving or starting{signal}"
            )
        if len(report.events) > 40:
            console.print(f"  [dim]and {len(report.events) - 40} more events (--json has them)[/]")
        reaction = duration(report.reaction_seconds) if report.reaction_seconds is not None else "-"
        terminal.say(
            f"out {report.num_out}, in {report.num_in}, undone within 15 minutes {report.thrash}; "
            f"{report.replica_seconds / 3600:,.1f} replica hours; overloaded and unable to grow "
            f"{duration(report.overload_seconds)}; new replicas serve after {reaction}"
        )
    terminal.next_command("prep sim fleet --help", "other routers, pools, autoscaling")


def _show_pools(report: DisaggregatedReport) -> None:
    _show_replicas({"prefill": report.prefill, "decode": report.decode}, report.run.seconds)
    terminal.say(
        f"{report.transfers:,} transfers, {gib(report.transfer_bytes)}, "
        f"{duration(report.mean_transfer_seconds)} each on average"
    )
    terminal.next_command("prep sim fleet --replicas N", "the same GPUs without pools")


def _show_replicas(pools: dict[str, list[ReplicaReport]], total: float) -> None:
    table = terminal.table("", "requests", "output tokens", "prefix hits", "busy", "preemptions")
    for name, members in pools.items():
        for member in members:
            paid = (member.stopped if member.stopped is not None else total) - member.started
            counts = (
                f"{member.num_requests:,}",
                f"{member.output_tokens:,}",
                f"{member.prefix_cache_hit_rate:.1%}",
            )
            busy = f"{member.busy_seconds / paid:.0%}" if paid > 0 else "-"
            table.add_row(f"{name} {member.index}", *counts, busy, f"{member.preemptions:,}")
    terminal.out().print(table)
