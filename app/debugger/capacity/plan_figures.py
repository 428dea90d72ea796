"""The figures of a plan: those of its scenario at the peak, then failures, regions, month, and the managed price.

plan.yaml -> Scenario at the peak -> figures.py: memory, time, load, cost
                                  -> here: spares -> GPUs -> month -> break-even;  regions -> TTFT after a failure
"""

from __future__ import annotations

import math

from app.debugger.capacity.figure import Capacity, money, ms
from app.debugger.capacity.figures import planned_rate, work_out
from app.debugger.capacity.scenario import Scenario
from engine.sim.plan import money as bills
from engine.sim.plan import regions
from engine.sim.plan.money import HOURS_PER_MONTH, Bill
from engine.sim.plan.plan_file import Plan
from engine.sim.sizing import ASSUMED_PRICES, slo_budget
from engine.sim.steady_state import Replica


def scenario_of(plan: Plan) -> Scenario:
    """Return the plan's scenario at its peak. Raises ConfigError if the deployment is not possible."""
    traffic, hardware = plan.traffic, plan.hardware
    return Scenario(
        model=plan.model,
        gpu=hardware.gpu,
        tp=hardware.tp,
        dtype=hardware.dtype,
        kv_cache_dtype=hardware.kv_cache_dtype,
        rate=max(traffic.hours) * traffic.peak_factor,
        prompt=round(traffic.prompt),
        output=round(traffic.output),
        prefix_share=traffic.prefix_share,
        num_prefixes=traffic.prefixes,
        ttft_ms=1000 * plan.slo.ttft,
        tpot_ms=1000 * plan.slo.tpot,
        price=plan.price.gpu.amount if plan.price else ASSUMED_PRICES[hardware.gpu],
        currency=plan.price.gpu.currency if plan.price else "$",
        headroom=plan.headroom,
    )


def work_out_plan(plan: Plan) -> tuple[Capacity, Bill | None]:
    """Compute all figures, and the bill by volume if the plan has a managed price."""
    capacity = work_out(scenario_of(plan))
    if capacity.problem:
        return capacity, None
    replica = Replica(capacity.scenario, capacity.value("batch_limit"))
    _peak(capacity, plan)
    _limit(capacity, plan)
    total = _failures(capacity, plan, replica)
    _start(capacity, plan)
    bill = _month(capacity, plan, replica, total)
    return capacity, bill


def _peak(capacity: Capacity, plan: Plan) -> None:
    traffic = plan.traffic
    busiest = max(traffic.hours)
    capacity.add(
        "peak", "Peak requests per second", capacity.scenario.rate, "requests/s",
        "mean rate x busiest hour / mean hour x peak factor",
        f"{traffic.rate:,.6g}/s x {busiest / traffic.rate:.2f} x {traffic.peak_factor:g}",
        Plan, "growth: plan for the rate of the day on which new GPUs would arrive",
    )  # fmt: skip


def _limit(capacity: Capacity, plan: Plan) -> None:
    """Check the end-to-end limit: the tokens that fit."""
    state = capacity.state
    assert state is not None
    if plan.slo.e2e is None or not state.is_stable:
        return
    budget = slo_budget(ttft=state.ttft, tpot=state.step, limit=plan.slo.e2e)
    capacity.add(
        "tokens_in_limit", "Output tokens within the end-to-end limit", budget.tokens, "tokens",
        "1 + floor((limit - TTFT) / TPOT)",
        f"1 + floor(({ms(plan.slo.e2e)} - {ms(state.ttft)}) / {ms(state.step)})",
        slo_budget, "the network, and the slower half of the requests: this is a mean", ("ttft", "tpot"),
    )  # fmt: skip
    output = capacity.scenario.output
    if budget.tokens >= output:
        capacity.verdicts.append(f"{output:,} output tokens meet the end-to-end limit of {ms(plan.slo.e2e)}.")
        return
    floor = capacity.value("prefill_floor") + (output - 1) * capacity.value("tpot_floor")
    if floor > plan.slo.e2e:
        capacity.verdicts.append(
            f"No number of replicas helps: {output:,} tokens take at least {ms(floor)} (prefill floor + "
            f"{output - 1:,} x TPOT floor), the end-to-end limit is {ms(plan.slo.e2e)}. "
            f"Limit answers to {budget.tokens:,} tokens, or take faster memory, a narrower dtype or more tp."
        )
    else:
        capacity.verdicts.append(
            f"The end-to-end limit of {ms(plan.slo.e2e)} cannot be met at this load: {budget.tokens:,} of "
            f"{output:,} tokens fit. The hardware's floor is {ms(floor)}; less load per replica comes nearer to it."
        )


def _failures(capacity: Capacity, plan: Plan, replica: Replica) -> int:
    """Add spares for failures. Return the replicas in all."""
    needed, failure = round(capacity.value("replicas")), plan.failure
    if failure is None:
        capacity.add("total", "Replicas with spares", needed, "replicas", "replicas", f"{needed:,}", Plan,
                  "failures: the plan has no part failure", ("replicas",))  # fmt: skip
        return needed
    domains = plan.num_domains
    if failure.domain == "replica":
        domains = total = needed + failure.down
        formula, filled = "replicas + down", f"{needed:,} + {failure.down}"
    else:
        total = regions.spread(needed, domains, failure.down)
        formula = "domains x ceil(replicas / (domains - down))"
        filled = f"{domains} x ceil({needed:,} / ({domains} - {failure.down}))"
    capacity.add(
        "total", f"Replicas that survive the loss of {failure.down} of {domains} {failure.domain}s", total, "replicas",
        formula, filled, regions.spread,
        "the traffic of the lost ones arrives at once; retries come on top",
        ("replicas",),
    )  # fmt: skip
    capacity.add(
        "normal_use", "Utilisation with everything up",
        capacity.scenario.rate / total / capacity.value("most"), "share",
        "peak / (replicas with spares x most)",
        f"{capacity.scenario.rate:,.6g} / ({total:,} x {capacity.value('most'):,.3g})",
        regions.spread, "", ("total", "most"),
    )  # fmt: skip
    left = max(1, total - failure.down * total // domains)
    after = replica.at(capacity.scenario.rate / left)
    capacity.add(
        "ttft_failed", "TTFT during the failure", after.ttft, "seconds",
        "steady state at peak / surviving replicas", f"{capacity.scenario.rate:,.6g} / {left:,} replicas",
        Replica.at, "the minutes until the router notices; caches of the survivors are cold for the new traffic",
        ("total", "peak"),
    )  # fmt: skip
    overload = regions.overload_share(domains, failure.down, failure.unavailability, failure.common_cause)
    together = failure.common_cause * failure.unavailability
    capacity.add(
        "overload", "Time with too little capacity", overload * HOURS_PER_MONTH * 60, "minutes a month",
        "(b x q + (1 - b x q) x P(more than down of the domains fail by themselves)) x 730 h",
        f"b = {failure.common_cause:.3g}, q = {failure.unavailability:.3g}, {failure.down} of {domains} down; common "
        f"causes alone {together * HOURS_PER_MONTH * 60:,.1f} minutes, which no further domain reduces",
        regions.overload_share, "repair times, and load below the peak, when more may fail", ("total",),
    )  # fmt: skip
    _networks(capacity, plan, after.ttft)
    return total


def _networks(capacity: Capacity, plan: Plan, ttft: float) -> None:
    """Add the TTFT of users whose region has failed, by the network to the next one."""
    for region in plan.regions:
        links = [link for link in plan.links if region.name in link.between]
        if not links:
            continue
        nearest = min(links, key=lambda link: link.rtt or regions.DETOUR * regions.light_rtt(link.distance))
        [other] = set(nearest.between) - {region.name}
        floor = regions.light_rtt(nearest.distance)
        rtt = nearest.rtt or regions.DETOUR * floor
        origin = "measured RTT" if nearest.rtt else f"{regions.DETOUR:g} x light in fibre"
        capacity.add(
            f"ttft_{region.name}", f"TTFT of users of {region.name}, served by {other}", rtt + ttft, "seconds",
            "RTT + TTFT of the engine; a new connection adds 2 RTTs",
            f"{ms(rtt)} ({origin}; floor 2 x {nearest.distance:,.0f} km / 204,218 km/s = {ms(floor)}) + {ms(ttft)}; "
            f"new connection {ms((1 + regions.HANDSHAKES) * rtt + ttft)}",
            regions.light_rtt, "TPOT does not change: tokens stream one way; jitter and loss do", ("ttft_failed",),
        )  # fmt: skip


def _start(capacity: Capacity, plan: Plan) -> None:
    weights = capacity.value("weights")
    seconds = weights / plan.hardware.storage + plan.hardware.start_overhead
    capacity.add(
        "cold_start", "Start of a further replica", seconds, "seconds",
        "weights of a GPU / speed of the storage + overhead",
        f"{weights / 1e9:,.2f} GB / {plan.hardware.storage / 1e9:g} GB/s + {ms(plan.hardware.start_overhead)}",
        ("engine/sim/plan/plan_file.py", "start_overhead"),
        "several replicas that read from one storage at once", ("weights",),
    )  # fmt: skip
    link, measured = capacity.scenario.deployment.hardware.host_link, plan.hardware.wake
    capacity.add(
        "wake", "Switch of models: copy sleeping weights back from host memory",
        link.seconds(weights) if measured is None else measured, "seconds",
        "weights of a GPU / host link" if measured is None else "measured, from hardware.wake",
        f"{weights / 1e9:,.2f} GB / {link.bytes_per_s / 1e9:g} GB/s" if measured is None else ms(measured),
        ("engine/sim/hardware.py", "class Link"),
        "other work of waking up; prep bench sleep measures this engine, which reloads from storage", ("weights",),
    )  # fmt: skip


def _month(capacity: Capacity, plan: Plan, replica: Replica, total: int) -> Bill | None:
    scenario, price, traffic = capacity.scenario, plan.price, plan.traffic
    currency, gpus = scenario.currency, scenario.deployment.num_devices
    one = gpus * scenario.price * HOURS_PER_MONTH
    people = price.people.amount if price and price.people else 0.0
    monthly = capacity.add(
        "monthly", "Own fleet per month", total * one + people, currency,
        "replicas with spares x GPUs x price x 730 h + people",
        f"{total:,} x {gpus} x {money(scenario.price, currency)} x 730 + {money(people, currency)}",
        Bill, "CPUs, disks, network; discounts for commitments", ("total",),
    )  # fmt: skip
    planned = planned_rate(scenario, replica)
    hours = [max(1, math.ceil(traffic.peak_factor * rate / planned - 1e-9)) for rate in traffic.hours]
    needed, spares = round(capacity.value("replicas")), total - round(capacity.value("replicas"))
    scaled = (sum(hours) / 24 + spares) * one + people
    capacity.add(
        "scaled", "Own fleet per month, scaled with the hours of the day", scaled, currency,
        "(mean over hours of ceil(peak factor x rate / planned rate) + spares) x GPUs x price x 730 h + people",
        f"({sum(hours) / 24:,.1f} of {needed:,} + {spares:,}) x {money(one, currency)} + {money(people, currency)}",
        planned_rate, "the autoscaler's reaction: prep sim autoscale", ("monthly",),
    )  # fmt: skip
    requests = traffic.rate * 3600 * HOURS_PER_MONTH
    mtok = requests * (scenario.prompt + scenario.output) / 1e6
    capacity.add(
        "per_mtok_all", "Own cost per million tokens, prompts included", monthly / mtok, currency,
        "month / (requests x (prompt + output))", f"{money(monthly, currency)} / {mtok:,.0f} million",
        Bill, "", ("monthly",),
    )  # fmt: skip
    if price is None or price.managed_prompt is None or price.managed_output is None:
        return None
    into, out = price.managed_prompt.amount, price.managed_output.amount
    per_request = (scenario.prompt * into + scenario.output * out) / 1e6
    capacity.add(
        "managed", "Managed service per month", requests * per_request, currency,
        "requests x (prompt x price in + output x price out)",
        f"{requests / 1e6:,.2f} million x ({scenario.prompt:,} x {into:g} + {scenario.output:,} x {out:g}) / 1e6",
        Bill, "cheaper cached prompt tokens, rate limits, minimum charges", ("peak",),
    )  # fmt: skip
    to_peak = scenario.rate / traffic.rate
    bill = Bill(one, spares * one + people, per_request, planned / to_peak * 3600 * HOURS_PER_MONTH)
    _break_even(capacity, bill, requests)
    return bill


def _break_even(capacity: Capacity, bill: Bill, requests: float) -> None:
    volume, currency = bill.break_even(), capacity.scenario.currency
    full = bill.managed(bill.requests_per_replica)
    if volume is None:
        capacity.verdicts.append(
            "Self-hosting is dearer at every volume: a fully planned replica costs "
            f"{money(bill.per_replica, currency)} a month and serves what the managed service "
            f"sells for {money(full, currency)}."
        )
        return
    stays = bill.stays_cheaper()
    assert stays is not None
    capacity.add(
        "break_even", "Break-even: requests per month from which own GPUs cost no more", volume, "requests",
        "own cost with n replicas / managed price of a request, for the least n that serves as many",
        f"({money(bill.fixed, currency)} fixed + {bill.replicas(volume):,} x {money(bill.per_replica, currency)}) / "
        f"{money(bill.managed_per_request, currency)}; from {stays:,.0f} on always",
        bills.Bill.break_even, "the day's shape is that of the plan at every volume", ("monthly", "managed"),
    )  # fmt: skip
    own, managed = capacity.value("monthly"), capacity.value("managed")
    cheaper, ratio = ("own GPUs", managed / own) if own < managed else ("the managed service", own / managed)
    capacity.verdicts.append(
        f"At {requests:,.0f} requests a month {cheaper} cost {ratio:.2f} times less; break-even at "
        f"{volume:,.0f} requests a month."
    )
