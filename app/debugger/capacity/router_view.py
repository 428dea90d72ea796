"""The view Router of the page Capacity: a simulated fleet, and the replica of each request with the reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import streamlit as st

from app.debugger.capacity.figure import Capacity, ms
from app.debugger.capacity.scenario import Scenario
from app.debugger.charts import mount
from app.debugger.page_frame import legend, told
from engine.config import ConfigError
from engine.gateway.route_map import routes_of_decisions
from engine.sim.calibration import calibrated_rates
from engine.sim.engine import SimEngine
from engine.sim.fleet import Fleet, FleetReport
from engine.sim.memory import plan_memory
from engine.sim.route_log import RouteLog, read_routes
from engine.sim.router import ROUTERS, make_router
from engine.sim.run import make_engine
from engine.trace.format import shown_name
from prep_common.text import counted

NUM_REQUESTS = 600
MOST_REPLICAS = 8
NUM_SAMPLES = 400
"""Looks at the replicas in a run, about."""
MOST_DRAWN = 3000
"""Decisions on the picture; of a longer file, the first."""
MOST_BYTES = 50_000_000
KINDS = {
    "adapter": ("--request-4", "its adapter is loaded there"),
    "prefix": ("--request-2", "its prefix is cached there"),
    "load": ("--request-0", "least loaded, or moved away from a full replica"),
    "turn": ("--request-3", "its turn"),
    "ring": ("--request-1", "the hash ring"),
    "only": ("--cached", "the only replica"),
}
_HERE = Path(__file__).with_name("router_map")
_HTML = """
<div class="routes">
  <canvas role="img" tabindex="0"></canvas>
  <div class="tip" hidden></div>
  <p class="status" aria-live="polite"></p>
</div>
"""


def show(capacity: Capacity) -> dict[str, str]:
    """Draw, and return the parameters of a link to the same picture."""
    if capacity.problem:
        st.error(capacity.problem.partition(" What would fit")[0])
        return {}
    router, replicas, is_by_prefix = _controls(capacity)
    log, report = _opened(), None
    if log is not None:
        st.caption(
            f"Shown: the opened file, routed by {told(log.router)}. To simulate again, remove it below."
        )
    else:
        log, report = _simulated(capacity.scenario, capacity.value("rate"), router, replicas)
        if not capacity.scenario.prefix_len:
            st.caption(
                "No prompt has a common prefix here. To see routing by prefix, raise Common prefix (share)."
            )
    if report is not None:
        st.html(_headline(report))
    _legend(log, is_by_prefix)
    _draw(log, is_by_prefix, report)
    if report is not None:
        _all_routers(capacity, replicas)
    _open_file()
    return {"router": router, "lanes": str(replicas)}


def _controls(capacity: Capacity) -> tuple[str, int, bool]:
    linked, lanes = st.query_params.get("router", ""), st.query_params.get("lanes", "")
    planned = min(MOST_REPLICAS, max(4, round(capacity.value("replicas"))))
    wanted = int(lanes) if lanes.isdecimal() and len(lanes) == 1 else planned
    st.session_state.setdefault("router name", linked if linked in ROUTERS else "prefix-affinity")
    st.session_state.setdefault("router replicas", min(MOST_REPLICAS, max(2, wanted)))
    left, middle, right = st.columns([1, 1, 1])
    with left:
        router = st.selectbox("Router", list(ROUTERS), key="router name")
    with middle:
        about = f"Each gets the plan's load of {capacity.value('rate'):,.3g} requests/s on average."
        replicas = st.slider("Replicas in the picture", 2, MOST_REPLICAS, key="router replicas", help=about)
    with right:
        colour = st.segmented_control(
            "Colour by", ["reason", "prefix"], key="router colour", default="reason", required=True
        )
    return router, replicas, colour == "prefix"


@st.cache_data(max_entries=16, show_spinner="Simulating the fleet …")
def _simulated(scenario: Scenario, rate: float, router: str, replicas: int) -> tuple[RouteLog, FleetReport]:
    """Serve requests with the real scheduler and router in virtual time. rate: requests per second of a replica."""
    memory, rates = plan_memory(scenario.deployment), calibrated_rates(scenario.deployment)

    def engine() -> SimEngine:
        return make_engine(scenario.deployment, plan=memory, rates=rates)

    log = RouteLog(router, NUM_REQUESTS / (rate * replicas) / NUM_SAMPLES)
    fleet = Fleet(engine, replicas, make_router(router), log=log)
    report = fleet.run(scenario.workload(NUM_REQUESTS, rate * replicas))
    return log, report


def _all_routers(capacity: Capacity, replicas: int) -> None:
    """Serve the same requests with every router, and list the figures."""
    with st.expander("All routers, the same requests"):
        if not st.toggle("Simulate all", key="router all"):
            return
        rows, bar = [], st.progress(0.0, "Simulating …")
        for number, name in enumerate(ROUTERS):
            bar.progress(number / len(ROUTERS), f"{name} …")
            run = (report := _simulated(capacity.scenario, capacity.value("rate"), name, replicas)[1]).run
            if run.ttft and run.tpot:
                rows.append(
                    {
                        "router": name,
                        "TTFT mean, ms": 1e3 * run.ttft.mean,
                        "TTFT p99, ms": 1e3 * run.ttft.p99,
                        "TPOT mean, ms": 1e3 * run.tpot.mean,
                        "cache hits, %": 100 * run.prefix_cache_hit_rate,
                        "busiest / mean": report.balance,
                        "preemptions": run.num_preemptions,
                    }
                )
        bar.empty()
        columns = (
            {name: st.column_config.NumberColumn(format="%.2f") for name in list(rows[0])[1:-1]}
            if rows
            else {}
        )
        st.dataframe(
            rows, hide_index=True, column_config=columns, alt="Latency, cache hits and balance of each router"
        )


def _opened() -> RouteLog | None:
    """Return the log of the uploaded file; None without a readable one."""
    file: Any = st.session_state.get("router file")
    if file is None:
        return None
    if file.size > MOST_BYTES:
        st.error(
            f"{told(file.name)} has {file.size / 1e6:,.0f} MB; at most {MOST_BYTES / 1e6:,.0f} MB are read."
        )
        return None
    try:
        return _read(file.getvalue().decode("utf-8", "replace"))
    except ConfigError as error:
        st.error(f"{told(file.name)} cannot be shown: {told(error)}")
        return None


def _read(text: str) -> RouteLog:
    """Read the log of a simulated fleet, or the decisions of a gateway."""
    if not text.lstrip().startswith("["):
        return read_routes(text)
    log, num_without = routes_of_decisions(text)
    if num_without:
        st.caption(f"Not drawn: {counted(num_without, 'request')} without a backend.")
    return log


def _open_file() -> None:
    with st.expander("Open a recorded run"):
        st.caption(
            "A simulated fleet: `prep sim fleet --num-prefixes 40 --prefix-len 800 --routes run.json`."
        )
        st.caption("A running gateway: `prep gateway explain URL --last 5000 --json > run.json`.")
        st.file_uploader("A file of one of these commands", type=["json"], key="router file")


def _headline(report: FleetReport) -> str:
    run = report.run
    cells = [
        (f"{run.prefix_cache_hit_rate:.1%}", "Prompt tokens found in prefix caches"),
        (f"{report.balance:.2f}", "Busiest replica over the mean, requests"),
        (f"{run.num_preemptions:,}", "Preemptions"),
    ]
    if run.ttft and run.tpot:
        cells = [
            (ms(run.ttft.mean), "TTFT, mean"), (ms(run.ttft.p99), "TTFT, p99"), (ms(run.tpot.mean), "TPOT, mean"),
            *cells,
        ]  # fmt: skip
    boxes = "".join(f"<div><b>{value}</b><span>{title}</span></div>" for value, title in cells)
    style = _HERE.with_name("headline.css").read_text("utf-8")
    return f"<style>{style}</style><div class='figures'>{boxes}</div>"


def _legend(log: RouteLog, is_by_prefix: bool) -> None:
    counts: Counter[str] = Counter(choice.kind for choice in log.choices)
    swatch = "height:12px;background:var({})"
    if any(sample.kv for sample in log.samples):
        entries = [
            ("height:2px;background:var(--green)", "KV cache in use, 0 to 100 %"),
            (swatch.format("--spread"), "running"),
            (swatch.format("--orange"), "waiting"),
        ]
    else:
        entries = [(swatch.format("--spread"), "unfinished requests, as the router counts them")]
    if not is_by_prefix:
        tick = "width:3px;height:14px;background:var({})"
        reasons = [
            (tick.format(colour), f"{words}: {counts[kind]:,} of {len(log.choices):,}")
            for kind, (colour, words) in KINDS.items()
            if counts[kind]
        ]
        entries = [*reasons, *entries]
    legend(entries)


def _draw(log: RouteLog, is_by_prefix: bool, report: FleetReport | None) -> None:
    chosen = log.choices[:MOST_DRAWN]
    last = max((len(sample.running) for sample in log.samples), default=0)
    samples = (
        log.samples
        if len(chosen) == len(log.choices)
        else [sample for sample in log.samples if sample.time <= chosen[-1].time]
    )
    if len(chosen) < len(log.choices):
        st.caption(f"Shown: the first {len(chosen):,} of {len(log.choices):,} decisions.")

    names = log.names or [f"replica {lane}" for lane in range(last)]
    has_kv = any(sample.kv for sample in samples)

    def levels(name: str) -> list[list[float]]:
        """The levels of every replica; 0 before it was started."""
        return [
            [(getattr(sample, name)[lane] if lane < len(sample.running) else 0) for sample in samples]
            for lane in range(last)
        ]

    counts = Counter(choice.replica for choice in log.choices)
    rates = {replica.index: replica.prefix_cache_hit_rate for replica in report.replicas} if report else {}
    data = {
        "choices": [
            [
                choice.time, choice.request, choice.prefix, choice.prompt, choice.replica, choice.kind, choice.reason,
                [[seen.replica, seen.load, seen.hit] for seen in choice.seen],
                _colour(choice.prefix if is_by_prefix else choice.kind),
            ]
            for choice in chosen
        ],
        "times": [round(sample.time, 4) for sample in samples],
        "running": levels("running"),
        "waiting": levels("waiting"),
        "kv": levels("kv") if has_kv else None,
        "end": max(samples[-1].time, chosen[-1].time, 1e-3) if samples else max(chosen[-1].time, 1e-3),
        "names": [shown_name(name) for name in names],
        "facts": [
            [counted(counts[lane], "request"), *([f"{rates[lane]:.0%} cache hits"] if lane in rates else [])]
            for lane in range(last)
        ],
        "unit": log.unit,
        "hint": "Hover: a decision, and the replicas as the router saw them. Drag: zoom. Double click: all. Keys: ← →",
        "alt": f"{counted(len(chosen), 'request')} on {counted(last, 'replica')} by {log.router}: "
        + "; ".join(f"{shown_name(name)} got {counts[lane]:,}" for lane, name in enumerate(names)),
    }  # fmt: skip
    mount("prep_routes", _HERE, data, "router map", html=_HTML)


def _colour(what: str | int) -> str:
    if isinstance(what, str):
        return KINDS[what][0]
    return "--cached" if what < 0 else f"--request-{what % 7}"
