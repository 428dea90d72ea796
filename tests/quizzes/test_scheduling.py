"""Scheduling experiments against oracles."""

from __future__ import annotations

from random import Random

import pytest

from quizzes.experiments import Context, get
from quizzes.experiments.registry import BadArguments
from quizzes.oracles import scheduling as paper
from tests.quizzes.runs import runner

run = runner("scheduling")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_a_prompt_gets_what_the_decodes_leave(seed: int) -> None:
    rng = Random(seed)
    decodes, budget = rng.randint(0, 60), rng.choice([64, 256, 512])
    prompt, threshold = rng.randint(1, 4000), rng.choice([16, 128, 1000])
    result = run("token_budget", decodes=decodes, prompt=prompt, budget=budget)
    assert result.steps_to_first_token == paper.chunk_steps(decodes, prompt, budget)
    assert result.chunks[-1] == paper.last_chunk(decodes, prompt, budget)
    assert result.missed_decodes == 0
    capped = run("token_budget", decodes=decodes, prompt=prompt, budget=budget, threshold=threshold)
    assert capped.steps_to_first_token == paper.capped_steps(decodes, prompt, budget, threshold)


@pytest.mark.parametrize("prompt", [100, 1024, 5000])
@pytest.mark.parametrize("chunk", [64, 512, 5000])
def test_chunks_read_kv_again_and_compute_no_pair_twice(prompt: int, chunk: int) -> None:
    result = run("chunk_cost", prompt=prompt, chunk=chunk)
    assert result.context_read == paper.reread_tokens(prompt, chunk)
    assert result.pairs == result.whole_pairs == sum(range(prompt + 1))


@pytest.mark.parametrize("gpu", ["h100", "a100-80"])
def test_stalls_equal_a_roofline_oracle(gpu: str) -> None:
    result = run("prefill_interference", budgets=[512, 32_768], prompt=16_384, decodes=32, gpu=gpu)
    measured = result.worst_gap_ms[1] / result.worst_gap_ms[0]
    assert measured == pytest.approx(paper.stall_ratio(16_384, 512, 32, gpu), rel=0.02)
    assert result.ttft_ms[1] < result.ttft_ms[0]


def test_a_cap_on_one_prompt_lets_a_short_one_through() -> None:
    plain = run("prefill_interference", budgets=[2048])
    capped = run("prefill_interference", budgets=[2048], threshold=512)
    assert plain.short_ttft_ms[0] == pytest.approx(plain.ttft_ms[0])
    assert capped.short_ttft_ms[0] < 0.1 * capped.ttft_ms[0]


def test_the_threshold_frees_budget_only_if_the_long_prompts_leave_some() -> None:
    found = run("partial_prefills", thresholds=[0, 1024, 512], longs=2, budget=2048)
    assert found.most_partial == [1, 2, 2] and found.overtaking == [0, 0, 6]
    assert found.short_tokens[2] < 0.1 * found.short_tokens[0]
    assert found.unused[0] == 0 < found.unused[2], (
        "what the threshold withholds stays unused without short ones"
    )


@pytest.mark.parametrize("seed", range(20))
def test_mean_latency_of_policies_on_one_slot(seed: int) -> None:
    rng = Random(seed)
    lens = [rng.randint(1, 50) for _ in range(rng.randint(1, 12))]
    result = run("policy_lab", policies=["fcfs", "sjf"], lens=lens)
    assert result.mean_latency == pytest.approx([paper.fcfs_mean(lens), paper.sjf_mean(lens)])


def test_shortest_first_starves_and_aging_bounds_it() -> None:
    lens, arrivals = [60] + [5] * 40, [0] + [3 * i for i in range(40)]
    result = run("policy_lab", policies=["sjf", "aging"], lens=lens, arrivals=arrivals)
    assert result.waits[0][0] == paper.sjf_long_wait(60, 5, 3, 40)
    assert result.waits[1][0] < result.waits[0][0] / 2


def test_fair_share_serves_a_small_tenant_after_one_job_of_the_large() -> None:
    result = run("policy_lab", policies=["fcfs", "fair"], lens=[9] * 11, tenants=["a"] * 10 + ["b"])
    assert result.tenant_mean_latency[0]["b"] == 99
    assert result.tenant_mean_latency[1]["b"] == paper.fair_small_tenant(10, 9)


def test_an_urgent_request_takes_blocks_and_no_slot() -> None:
    slots_short = run("priority_arrival", slots=4, low=6, low_output=30, arrival=5)
    assert slots_short.preemptions_before == 0
    assert slots_short.urgent_wait == paper.first_free_slot(6, 4, 30, 5)
    memory_short = run("priority_arrival", slots=8, blocks=14, low=5)
    assert memory_short.victims == ["low4", "low3"] and not memory_short.urgent_preempted


@pytest.mark.parametrize("rule", ["prompt", "full"])
@pytest.mark.parametrize("limit", [80, 400])
def test_max_tokens_matters_only_when_it_is_reserved(rule: str, limit: int) -> None:
    result = run("admission", rule=rule, blocks=60, requests=20, prompt=50, output=80, max_tokens=limit)
    expected = paper.lifetimes_that_fit(60, 50, limit if rule == "full" else 1, 16)
    assert result.admitted_first == expected
    assert (result.preemptions == 0) == (rule == "full")


def test_requests_that_can_never_finish_are_rejected() -> None:
    assert run("admission", blocks=20, requests=3, prompt=50, output=80, max_tokens=400).refused == 3
    assert run("admission", blocks=20, requests=3, prompt=50, output=80, max_tokens=200).refused == 0


def test_a_watermark_admits_fewer_and_preempts_less() -> None:
    plain, kept = run("admission"), run("admission", rule="watermark", watermark=0.3)
    assert kept.admitted_first < plain.admitted_first
    assert kept.preemptions < plain.preemptions


def test_no_request_overtakes_a_head_that_lacks_memory() -> None:
    result = run("head_of_line")
    assert (result.head_reason, result.small_reason) == ("no_blocks", "behind_in_queue")
    assert result.bypass_small_wait < result.fcfs_small_wait


@pytest.mark.parametrize("bound", [0, 2, 5])
@pytest.mark.parametrize("every", [2, 3, 6])
def test_queues_with_and_without_a_bound(bound: int, every: int) -> None:
    result = run("queue_bound", slots=4, service=18, every=every, arrivals=50, bound=bound)
    if bound:
        assert result.rejected == paper.turned_away(4, 18, every, 50, bound)
    else:
        assert result.last_wait == paper.steady_wait(4, 18, every, 49)


@pytest.mark.parametrize("seed", range(5))
def test_littles_law_holds_to_the_last_digit(seed: int) -> None:
    result = run("queue_bound", random=True, every=5, seed=seed)
    assert result.mean_wait == pytest.approx(paper.little_wait(result.mean_queue, result.throughput))
    sweep = run("load_sweep", values=[16], requests=100, seed=seed)
    assert sweep.little == pytest.approx(sweep.mean_in_system)


def test_a_closed_loop_holds_no_more_than_its_users() -> None:
    result = run("open_vs_closed", users=[8], rates=[80.0], requests=150)
    assert result.closed_in_system[0] <= 8 + 1e-6
    assert result.open_ttft_p99_ms[0] > result.closed_ttft_p99_ms[0]


def test_more_slots_lower_ttft_and_raise_itl_while_requests_queue() -> None:
    result = run("load_sweep", values=[8, 128])
    assert result.ttft_mean_ms[1] < result.ttft_mean_ms[0]
    assert result.itl_p50_ms[1] > result.itl_p50_ms[0]


def test_a_bounded_queue_beats_a_faster_model_only_under_a_large_overload() -> None:
    large = run("spike_relief", every=2, faster=1.3)
    small = run("spike_relief", every=4, faster=1.4)
    assert large.bounded_met > large.faster_met
    assert small.bounded_met < small.faster_met
    assert large.bounded_worst_wait < large.faster_worst_wait


def test_a_step_of_both_kinds_reads_the_weights_once() -> None:
    result = run("mixed_step", decodes=16, chunk=256)
    assert max(result.decode_ms, result.chunk_ms) < result.mixed_ms < result.decode_ms + result.chunk_ms
    assert (result.decode_intensity, result.chunk_intensity) == (
        16,
        256,
    )  # bfloat16: one FLOP per byte and token


def test_the_gain_of_paging_grows_with_what_was_reserved() -> None:
    gains = [run("reservation_race", max_tokens=limit).concurrency for limit in (100, 300, 600)]
    assert 1 < gains[0] < gains[1] < gains[2]


def test_chunks_do_not_change_the_answer_of_the_live_engine() -> None:
    result = run("live_chunking", prompt=300, chunk=32)
    assert result.same_token and result.passes == 10
    assert result.lo <= result.ratio <= result.hi


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefill_interference", "policy_lab", "load_sweep"])
def test_charts_show_figures_of_the_result(name: str) -> None:
    found = get(f"scheduling.{name}")
    result = found.run(Context(), **found.check({}))
    values = found.chart(result)["data"]["values"]
    assert len(values) >= 3 and all(len(value) == 3 for value in values)


def test_inconsistent_arguments_are_refused() -> None:
    with pytest.raises(BadArguments, match="one entry for each"):
        run("policy_lab", lens=[3, 4], priorities=[1])
    with pytest.raises(BadArguments, match="less than output"):
        run("admission", output=50, max_tokens=20)
    with pytest.raises(BadArguments, match="leave nothing"):
        run("token_budget", decodes=64, budget=64)
    with pytest.raises(BadArguments, match="take too long"):
        run("token_budget", decodes=250, budget=251, prompt=40_000)
    with pytest.raises(BadArguments, match="keep it to 2000"):
        run("load_sweep", output="1-900000")
    with pytest.raises(BadArguments, match="expected a number of tokens"):
        run("open_vs_closed", prompt="many")
    with pytest.raises(BadArguments, match="must fit into"):
        run("reservation_race", blocks=50, prompt=400, max_tokens=700)
    with pytest.raises(BadArguments, match="could never run"):
        run("head_of_line", blocks=10, large_blocks=11)
