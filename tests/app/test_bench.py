"""Benchmarks at a small size: the figures are consistent, and Ctrl-C keeps partial results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from app.bench import debugger, grammar, latency, scheduler, startup, throughput, tiers, timing
from app.bench.big_trace import make_trace
from app.bench.timing import spread
from app.bench.workload import Lengths
from app.cli.bench.common import warn_if_busy
from app.cli.main import app

SMALL = {"num_gpu_blocks_override": 128}
WORK = {"num_prompts": 4, "input_len": Lengths(16, 16), "output_len": Lengths(8, 8)}


class InterruptAt:
    """A status line whose n-th message is Ctrl-C."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, text: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def say_nothing(text: str) -> None:
    pass


def test_a_spread_is_in_milliseconds() -> None:
    result = spread([value / 1000 for value in range(101)])
    assert (result.p50, result.p90, result.p99, result.max, result.count) == (50, 90, 99, 100, 101)
    assert spread([]).count == 0


def test_the_scheduler_bench_measures_both_ways_of_waiting() -> None:
    report = scheduler.measure(say_nothing, requests=8, steps=5, queues=(10, 20))
    assert report.decode.total.count == 5
    assert [(row.waiting, row.blocked_by) for row in report.queues] == [
        (10, "max_seqs"),
        (20, "max_seqs"),
        (10, "no_blocks"),
        (20, "no_blocks"),
    ]


def test_an_interrupted_bench_returns_what_it_has() -> None:
    report = scheduler.measure(InterruptAt(3), requests=8, steps=5, queues=(10, 20))
    assert report.interrupted
    assert report.decode is not None and len(report.queues) == 1


def test_throughput_counts_every_token_and_its_shares_make_sense() -> None:
    report = throughput.measure(
        say_nothing, "shop", SMALL, num_prompts=4, input_len=Lengths(16, 16), output_len=Lengths(8, 8)
    )
    assert report.finished == 4
    assert report.output_tokens == 4 * 8
    assert report.prompt_tokens == 4 * 16
    assert report.schedule_share + report.execute_share + report.update_share == pytest.approx(1)
    assert 0 < report.gemm_floor_share < report.execute_share * 1.5
    assert sum(report.step_shares.values()) == pytest.approx(1)


def test_an_interrupted_throughput_run_reports_the_steps_it_made() -> None:
    report = throughput.measure(
        InterruptAt(6), "shop", SMALL, num_prompts=4, input_len=Lengths(16, 16), output_len=Lengths(8, 8)
    )
    assert report.interrupted
    assert report.steps == 4 and report.output_tokens_per_s > 0


def test_latency_has_one_first_token_per_request_and_the_rest_between() -> None:
    report = latency.measure(
        say_nothing, "shop", SMALL, batch_sizes=(1, 3), input_len=16, output_len=4, rounds=2
    )
    assert [row.ttft.count for row in report.batches] == [2, 6]
    assert [row.itl.count for row in report.batches] == [2 * 3, 6 * 3]


@pytest.mark.slow
def test_startup_phases_add_up_to_the_whole_process() -> None:
    report = startup.measure(say_nothing, "shop", runs=1)
    assert set(report.phases) == set(startup.PHASES)
    assert report.total == pytest.approx(sum(report.phases.values()))
    assert [len(run) for run in report.runs_without_kernels] == [len(startup.PHASES)]
    assert report.total_without_kernels == sum(report.runs_without_kernels[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["scheduler", "--requests", "4", "--steps", "2"],
        ["throughput", "--num-prompts", "2", "--input-len", "8", "--output-len", "2"],
        ["latency", "--batch-sizes", "2", "--input-len", "8", "--output-len", "2", "--rounds", "1"],
    ],
)
def test_json_and_tables(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["interrupted"] is False
    assert "next: prep" in CliRunner().invoke(app, ["bench", *arguments]).stderr


@pytest.mark.parametrize("command", ["throughput", "latency"])
def test_outputs_that_would_be_cut_are_refused(command: str) -> None:
    sizes = ["--input-len", "60", "--output-len", "8", "--max-model-len", "64"]
    result = CliRunner().invoke(app, ["bench", command, "shop", *sizes])
    assert result.exit_code == 2
    assert "60 tokens in and 8 out are 68, and max_model_len is 64" in " ".join(result.stderr.split())


def test_wrong_batch_sizes_are_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "latency", "--batch-sizes", "1,x"])
    assert result.exit_code == 2
    assert "--batch-sizes must be whole numbers" in result.stderr


def test_the_tier_bench_finds_every_prefix_where_it_put_it() -> None:
    report = tiers.measure(say_nothing, "shop", {}, lengths=(48, 72), rounds=1)
    assert report.misses == 0
    assert [(row.prompt_len, row.num_blocks) for row in report.rows] == [(48, 2), (72, 4)]
    assert all(set(row.first_token) == set(tiers.SOURCES) for row in report.rows)
    assert min(min(row.first_token.values()) for row in report.rows) > 0
    assert min(min(row.copy_out, row.copy_in) for row in report.rows) > 0
    assert report.block_bytes > 0 and not report.interrupted


def test_the_swap_command_prints_json() -> None:
    result = CliRunner().invoke(app, ["bench", "swap", "--lengths", "40,72", "--rounds", "1", "--json"])
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["rows"]) == 2
    assert CliRunner().invoke(app, ["bench", "swap", "--lengths", "many"]).exit_code == 2


def test_grammars_cost_what_is_measured_and_make_every_output_valid() -> None:
    report = grammar.measure(lambda text: None, "shop", vocab_size=None, outputs=4, temperature=1.0)
    assert {cost.grammar for cost in report.costs} == set(grammar.GRAMMARS)
    assert all(cost.num_masks > 20 and cost.new_mask_us > 0 for cost in report.costs if cost.backend == "dfa")
    shares = {row.name: row for row in report.validity}
    assert shares["JSON, masked"].valid == 1 - shares["JSON, masked"].cut_off > 0
    assert shares["tool_choice=required"].valid == 1 and shares["tool_choice=none"].valid == 0
    assert len(grammar.make_vocabulary("shop", 5000)) == 5000


def test_the_debugger_bench_times_a_trace_that_it_makes_and_one_that_is_there(tmp_path: Path) -> None:
    made = debugger.measure(say_nothing, [(200, 40)], [], seeks=3).runs[0]
    assert (made.blocks, made.steps, made.seek_window.count, made.seek_details.count) == (200, 40, 3, 3)
    assert made.requests > 0 and made.block_events > 0 and 0 < made.open_s < 60 and made.server_rss_mb > 10
    make_trace(tmp_path / "run.itrace", 200, 30, say_nothing)
    result = CliRunner().invoke(
        app, ["bench", "debugger", "--trace", str(tmp_path / "run.itrace"), "--seeks", "2"]
    )
    assert result.exit_code == 0, result.output
    assert "200 blocks x 30 steps: run.itrace" in result.output and "open, empty cache" in result.output


@pytest.mark.parametrize("size", ["many", "100x50", "10000x0", "10000"])
def test_a_size_that_is_none_is_refused_before_anything_is_made(size: str) -> None:
    result = CliRunner().invoke(app, ["bench", "debugger", "--size", size])
    assert result.exit_code == 2 and "10000x5000" in result.output


def test_a_busy_machine_is_reported_with_its_effect(capsys: pytest.CaptureFixture[str]) -> None:
    warn_if_busy(0.1)
    assert not capsys.readouterr().err
    warn_if_busy(1.3)
    assert "other programs used 1.3 cores meanwhile: times are too high" in capsys.readouterr().err


def test_processor_time_of_other_programs_excludes_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, own, clock = iter([10.0, 19.0]), iter([1.0, 4.0]), iter([0.0, 4.0])
    monkeypatch.setattr(timing, "machine_busy_seconds", lambda: next(machine))
    monkeypatch.setattr(timing, "os", SimpleNamespace(times=lambda: (next(own), 0, 0, 0, 0)))
    monkeypatch.setattr(timing, "perf_counter", lambda: next(clock))
    other_cores = timing.watch_other_programs()
    assert other_cores() == 1.5


def test_parallel_splits_in_two_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(tell, model, engine, **sizes):
        raise ValueError(f"ranks: {engine['tensor_parallel_size']}")

    monkeypatch.setattr("app.bench.parallel.measure", measure)
    result = CliRunner().invoke(app, ["bench", "parallel"])
    assert "--tensor-parallel-size 2 is used" in result.output
    assert "ranks: 2" in result.output


def test_a_long_benchmark_states_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*args, **sizes):
        raise KeyboardInterrupt

    monkeypatch.setattr("app.bench.speculation.measure", measure)
    assert "takes about 10 min" in CliRunner().invoke(app, ["bench", "speculation"]).output
