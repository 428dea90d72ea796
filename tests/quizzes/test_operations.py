"""Operations experiments (gateways, scaling, metrics) against closed forms."""

from __future__ import annotations

import pytest

from quizzes.experiments.operations.gateway import Gateway
from quizzes.experiments.running import run_here
from quizzes.oracles import operations as paper
from tests.quizzes.runs import runner

run = runner("operations")


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
def test_the_gateway_gives_a_backend_its_share_of_users_with_consecutive_names(share: float) -> None:
    gateway = Gateway({}, {"new": share, "old": 1 - share})
    users = 5000
    on_new = sum(gateway.route(f"user-{index}") == "new" for index in range(users))
    assert abs(on_new - users * share) < 3.29 * (users * share * (1 - share)) ** 0.5  # 99.9 %


def test_a_canary_states_the_interval_of_its_users() -> None:
    result = run("canary", share=0.1, users=500)
    assert (result.users_expected_low, result.users_expected_high) == (37, 63)
    assert result.users_expected_low <= result.users_on_new <= result.users_expected_high


def test_a_user_stays_on_one_side_of_a_canary_and_a_rollback_ends_the_failures() -> None:
    result = run("canary")
    assert result.users_on_both == 0 and result.failed_after_rollback == 0
    assert result.failed_without_canary == paper.exposed(1.0, 1000, 4)
    assert result.failed == pytest.approx(paper.exposed(0.1, 1000, 4), rel=0.1)


@pytest.mark.parametrize(("threshold", "cooldown", "down_for"), [(5, 20, 100), (1, 0, 7), (3, 9, 64)])
def test_an_open_breaker_asks_once_per_cooldown(threshold: int, cooldown: int, down_for: int) -> None:
    result = run("circuit_breaker", threshold=threshold, cooldown=cooldown, down_for=down_for)
    assert result.calls_while_down == paper.probes_while_down(down_for, threshold, cooldown)
    assert result.by_fallback + result.rejected + result.served_by_primary == 300


@pytest.mark.parametrize(("candidate", "different"), [("same", 0), ("preempting", 0), ("other_model", 4)])
def test_shadow_traffic_counts_differences_and_never_changes_an_answer(
    candidate: str, different: int
) -> None:
    result = run("shadow", candidate=candidate, requests=4, max_tokens=12)
    assert (result.different, result.answers_from_old) == (different, 4)
    assert result.after_cutover_from_new == result.after_rollback_from_old == 4


def test_slow_scale_in_calms_a_swing_that_is_shorter_than_its_cooldown() -> None:
    fast, slow = run("square_wave", cooldown_in=120), run("square_wave")
    assert slow.outs + slow.ins < fast.outs + fast.ins
    assert run("square_wave", half_period_s=1800).ins > 0


def test_detection_and_start_add_up() -> None:
    result = run("step_load")
    assert result.ready_s == paper.ready_after(305, 120, 10, 67) and not result.within_goal


def test_kv_usage_does_not_see_a_queue_behind_full_slots() -> None:
    blind, seeing = run("scaling_signal"), run("scaling_signal", signal="queue", out_above=10)
    assert blind.missed and blind.peak_kv_usage < 0.7
    assert seeing.outs > 0 and not seeing.missed


def test_ttft_is_queue_and_prefill() -> None:
    idle, busy = run("latency_parts", rate=1.0, requests=60), run("latency_parts", rate=15.0)
    assert idle.queue_share < 0.3 < 0.5 < busy.queue_share
    assert max(idle.sum_error_ms, busy.sum_error_ms) < 1e-6


def test_counters_are_what_the_steps_did() -> None:
    for args in ({}, {"num_blocks": 12, "gap": 0}, {"shared": 0}, {"max_num_seqs": 2}):
        assert run("counters", **args).recount_differs == 0
    assert run("counters").hit_rate == pytest.approx(paper.hit_share(6, 64, 20))
    assert run("counters", num_blocks=12, gap=0).preemptions > 0


def test_a_live_answer_has_one_ttft_one_tpot_and_many_gaps() -> None:
    result = run("live_latency", max_tokens=12, prompt_words=60)
    assert result.gaps == 11 and result.tpots == 1 and result.ttft_ms > result.tpot_ms
    assert result.parts_error_ms < 1e-6


@pytest.mark.parametrize("window", [1, 5, 30, 60])
def test_the_window_delays_an_alert(window: int) -> None:
    result = run("alert_rule", window_min=window)
    assert result.below_after_min == paper.below_after(0.72, 0.45, 0.5, window)
    assert result.fires_after_min == result.below_after_min + 15
    assert not run("alert_rule", lasts_min=10).fires


def test_littles_law_holds_on_the_scheduler() -> None:
    result = run("queue_law")
    assert result.mean_waiting == pytest.approx(result.little) and result.peak_waiting > 0


def test_percentiles_do_not_average() -> None:
    result = run("percentile_trap")
    assert result.p99_all_ms == paper.mixture_p99(900, 100, 120, 900) != result.p99_mean_ms
    assert result.bucket_low_ms <= result.p99_histogram_ms <= result.bucket_high_ms


@pytest.mark.slow
def test_every_fault_shows_on_a_line_that_no_other_fault_moves() -> None:
    """An incident question is fair only if its dashboard tells the causes apart."""
    from quizzes.experiments.operations.metrics import FAULTS

    marks = {
        "volatile_prompt": lambda r: r["today"]["hit_rate"] == 0,
        "small_pool": lambda r: r["today"]["preemptions"] > 0,
        "no_chunking": lambda r: (
            r["ratio"]["itl_max"] > 3 and r["today"]["preemptions"] == 0 and r["ratio"]["itl_p50"] < 1.5
        ),
        "tiny_budget": lambda r: r["ratio"]["itl_max"] < 0.7,
        "missing_stop": lambda r: r["ratio"]["answer_tokens"] > 2,
        "overload": lambda r: r["ratio"]["requests_per_s"] > 2,
        "throttled_gpu": lambda r: (
            r["ratio"]["itl_p50"] > 2
            and r["ratio"]["requests_per_s"] <= 1
            and r["ratio"]["answer_tokens"] == 1
        ),
    }
    assert set(marks) == set(FAULTS) - {"none"}
    for seed in (0, 1):
        seen = {fault: run_here("operations.incident", {"fault": fault, "seed": seed}) for fault in marks}
        for name, shows in marks.items():
            assert [fault for fault, result in seen.items() if shows(result)] == [name], (seed, name)


def test_a_healthy_day_is_like_yesterday() -> None:
    result = run_here("operations.incident", {"fault": "none", "seed": 4})
    assert result["today"] == result["yesterday"]
