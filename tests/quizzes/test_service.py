"""The experiment that designs of mock interviews run on: every fault has its own signature; formula and run agree."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import pytest

from quizzes.experiments.registry import BadArguments
from quizzes.experiments.running import run_here

BASE: dict[str, Any] = {
    "gpu": "l4", "dtype": "fp8", "rate": 6.0, "seconds": 20.0, "replicas": 3, "prompt": 400, "output": 60,
    "prefix_len": 512, "tenants": 6, "router": "prefix-affinity", "long_share": 0.05, "long_prompt": 5000,
    "max_num_batched_tokens": 512, "spike": 4.0, "spike_at_s": 5.0, "spike_for_s": 5.0, "timeout_s": 30.0,
}  # fmt: skip
SCALED = {"max_replicas": 6, "sustain_s": 0.0, "cooldown_s": 0.0, "out_above": 12.0, "in_below": 1.0}
FAULTS: dict[str, dict[str, Any]] = {
    "slow replica": {"slow_replica": 5.0, "router": "round-robin"},
    "replica down": {"down_at_s": 8.0},
    "volatile head": {"volatile_head": True},
    "small pool": {"gpu_memory_utilization": 0.49},
    "more long prompts": {"long_share": 0.25},
    "no chunking": {"chunked_prefill": False},
    "few slots": {"max_num_seqs": 5},
    "small budget": {"max_num_batched_tokens": 96},
    "long outputs": {"output": 180},
    "blind router": {"router": "round-robin"},
    "retries": {"timeout_s": 0.25, "retries": 3, "cancel": False},
    "host overhead": {"step_overhead_ms": 40.0},
    "traffic": {"rate": 18.0},
    "bad drafts": {"spec_tokens": 6, "spec_acceptance": 0.05},
    "slow start": {**SCALED, "cold_start_s": 60.0},
    "thrash": {**SCALED, "cold_start_s": 0.0, "cooldown_in_s": 0.0, "in_below": 11.0, "spike_every_s": 10.0},
}
SHOWN = {
    "attempts per request": lambda r: r["attempts"] / r["requests"],
    "rejected": lambda r: r["rejected"],
    "requests": lambda r: r["requests"],
    "hit rate": lambda r: r["hit_rate"],
    "preemptions": lambda r: r["preemptions"],
    "prompt tokens": lambda r: r["prompt_tokens_mean"],
    "output tokens": lambda r: r["output_tokens_mean"],
    "running, most": lambda r: r["running_max"],
    "waiting": lambda r: r["waiting_mean"],
    "ITL p50": lambda r: r["itl_p50_ms"],
    "longest step over p50": lambda r: r["step_p99_ms"] / r["step_p50_ms"],
    "unequal steps": lambda r: max(r["replica"]["step_ms"]) / (sum(r["replica"]["step_ms"]) / 3),
    "wasted": lambda r: r["wasted_share"],
    "replicas started": lambda r: r["scale_outs"],
    "changes undone": lambda r: r["thrash"],
}


@cache
def signature(fault: str) -> tuple[int, ...]:
    """Whether each shown figure is lower (-1), about the same (0) or higher (1) than in the healthy twin."""
    healthy, broken = serve(), serve(**FAULTS[fault])
    return tuple(_sign(shown(healthy), shown(broken)) for shown in SHOWN.values())


def _sign(before: float, after: float) -> int:
    if abs(after - before) <= 0.02:
        return 0
    return (after > 1.15 * before) - (after < before / 1.15)


def serve(**args: Any) -> dict[str, Any]:
    return run_here("capacity.service", {**BASE, **args})


@pytest.mark.slow
def test_every_fault_has_its_own_signature() -> None:
    assert all(any(signature(fault)) for fault in FAULTS)
    equal = [pair for pair in combinations(FAULTS, 2) if signature(pair[0]) == signature(pair[1])]
    assert not equal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "figure", "sign"),
    [
        ("volatile head", "hit rate", -1),
        ("small pool", "preemptions", 1),
        ("few slots", "waiting", 1),
        ("few slots", "running, most", -1),
        ("slow replica", "unequal steps", 1),
        ("retries", "attempts per request", 1),
        ("retries", "wasted", 1),
        pytest.param("no chunking", "longest step over p50", 1, marks=pytest.mark.slow),
        pytest.param("long outputs", "output tokens", 1, marks=pytest.mark.slow),
        ("replica down", "rejected", 1),
        pytest.param("bad drafts", "wasted", 1, marks=pytest.mark.slow),
        pytest.param("thrash", "changes undone", 1, marks=pytest.mark.slow),
    ],
)
def test_a_fault_shows_where_it_should(fault: str, figure: str, sign: int) -> None:
    assert signature(fault)[list(SHOWN).index(figure)] == sign


def test_the_same_seed_gives_the_same_run() -> None:
    assert serve() == serve()
    assert serve(seed=1) != serve()


def test_formula_and_simulation_agree_where_the_load_is_steady() -> None:
    found = serve(spike=1.0, long_share=0.0, spread=0.0, seconds=40.0, tenants=1, rate=4.0)
    formula = found["formula"]
    assert found["itl_mean_ms"] == pytest.approx(formula["tpot_ms"], rel=0.1)
    assert found["running_mean"] / 3 == pytest.approx(formula["running"], rel=0.15)
    assert found["hit_rate"] == pytest.approx(formula["hit_rate"], rel=0.05)
    assert formula["kv_tokens"] == found["formula"]["seqs_that_fit"] * formula["kv_tokens_per_request"]


def test_attempts_and_answers_add_up() -> None:
    found = serve(**FAULTS["retries"], replicas=1)
    assert found["requests"] == found["finished"] + found["gave_up"]
    assert found["attempts"] == found["finished"] + found["late"] + found["rejected"]
    assert sum(found["replica"]["served"]) == found["attempts"]  # nothing is cancelled


def test_cancelling_abandoned_attempts_wastes_less() -> None:
    storm = {**FAULTS["retries"], "replicas": 1}
    assert serve(**{**storm, "cancel": True})["wasted_share"] < serve(**storm)["wasted_share"]


def test_a_full_queue_refuses() -> None:
    found = serve(max_waiting=1, max_num_seqs=4)
    assert found["rejected"] > 0 and found["gave_up"] == found["rejected"]
    assert found["ttft_p99_ms"] < serve(max_num_seqs=4)["ttft_p99_ms"]


def test_load_of_a_dead_replica_moves_to_the_others() -> None:
    found = serve(down_at_s=8.0, retries=1)
    assert found["gave_up"] == 0 and found["rejected"] > 0
    assert found["replica"]["served"][0] < min(found["replica"]["served"][1:])


def test_a_slow_replica_gets_less_from_a_router_that_sees_load() -> None:
    slow = {"slow_replica": 5.0}
    fair, aware = serve(**slow, router="round-robin"), serve(**slow, router="least-loaded")
    assert aware["replica"]["served"][0] < fair["replica"]["served"][0]


def test_an_impossible_design_is_a_result() -> None:
    found = serve(model="llama-3.1-70b")
    assert not found["fits"] and "does not fit on l4" in found["problem"]
    assert found["goodput"] == 0 and found["ttft_p99_ms"] == 1e9
    assert found["dollars_per_hour"] == pytest.approx(3 * 0.7)
    possible = serve()
    assert {name: sorted(found[name]) for name in ("replica", "formula", "series")} == {
        name: sorted(possible[name]) for name in ("replica", "formula", "series")
    }


def test_too_much_traffic_is_refused_before_the_run() -> None:
    with pytest.raises(BadArguments, match=r"requests.* is the limit: lower rate or seconds"):
        serve(rate=200, seconds=600)


@pytest.mark.slow
@pytest.mark.parametrize(
    "extreme",
    [
        {"rate": 50, "seconds": 60, "replicas": 32, "tenants": 100, "router": "prefix-affinity", "spike": 1},
        {
            "rate": 10,
            "seconds": 100,
            "prompt": 6000,
            "max_num_batched_tokens": 64,
            "spike": 1,
            "long_share": 0,
        },
        {"rate": 40, "seconds": 60, "max_num_seqs": 1, "spike": 1},
        {"rate": 3, "seconds": 50, "output": 4000, "gpu_memory_utilization": 0.5},
        {"rate": 3, "seconds": 60, "timeout_s": 1, "retries": 5, "cancel": False, "replicas": 1},
        {"rate": 10, "seconds": 60, "spec_tokens": 8, "spec_acceptance": 0},
        {"rate": 10, "seconds": 60, **SCALED, "max_replicas": 64, "cooldown_in_s": 0, "spike_every_s": 10},
    ],
)
def test_extremes_end_soon(extreme: dict[str, Any]) -> None:
    found = serve(**extreme)
    assert found["fits"] and found["finished"] + found["gave_up"] == found["requests"]
    assert len(found["series"]["time_s"]) <= 60
