"""`prep sim`: help, JSON that scripts can rely on, clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.bench.comparison import Figure
from app.bench.sim_check import CheckReport, Interrupted, Outcome
from app.cli.main import app
from engine.sim.calibration import (
    Calibration,
    calibration_file,
    load_calibrations,
    rates_on_cpu,
    save_calibration,
)
from engine.sim.cost import Rates
from engine.sim.models import get_model

ROOT = Path(__file__).resolve().parents[2]


def prep(*arguments: str):
    return CliRunner().invoke(app, ["sim", *arguments])


def test_run_prints_the_json_that_scripts_read() -> None:
    result = prep("run", "--num-requests", "20", "--rate", "20", "--json")
    report = json.loads(result.stdout)
    assert set(report) == {
        "num_requests", "num_finished", "num_rejected", "rejected_because", "seconds", "requests_per_s",
        "output_tokens_per_s", "total_tokens_per_s", "prompt_tokens", "output_tokens", "ttft", "itl", "tpot", "e2e",
        "queue", "num_steps", "mean_step_seconds", "busy_share", "prefill_tokens", "num_preemptions", "host_bytes",
        "mean_running", "peak_running", "mean_waiting", "peak_waiting", "mean_kv_cache_usage", "peak_kv_cache_usage",
        "prefix_cache_hit_rate", "config",
    }  # fmt: skip
    assert set(report["ttft"]) == {"count", "mean", "p50", "p90", "p95", "p99", "max"}
    assert report["num_finished"] == 20


def test_run_says_the_same_for_people() -> None:
    result = prep("run", "--model", "llama-3-70b", "--gpu", "h100", "--tp", "8", "--num-requests", "20")
    assert result.exit_code == 0
    for word in ("TTFT", "ITL", "throughput", "preemptions", "llama-3-70b in bfloat16 on 8 x h100 (tp=8)"):
        assert word in result.stdout


def test_a_hint_carries_the_options_without_which_it_would_fail() -> None:
    result = prep("run", "--model", "llama-3-70b", "--tp", "8", "--dtype", "fp8", "--num-requests", "5")
    assert "prep sim kv --model llama-3-70b --tp 8 --dtype fp8" in result.stderr


def test_requests_that_the_context_cuts_are_told(tmp_path: Path) -> None:
    result = prep("run", "--prompt", "7000-8100", "--output", "900", "--num-requests", "20")
    assert "of 20 requests exceed the context of 8,192 positions" in result.stderr
    listed = tmp_path / "requests.jsonl"
    listed.write_text(
        '{"arrival": 0, "prompt": 8000, "output": 900}\n{"arrival": 0, "prompt": 10, "output": 5}\n'
    )
    assert "1 of 2 requests exceed" in prep("run", "--requests", str(listed)).stderr


def test_infinite_rate_is_still_json() -> None:
    report = json.loads(prep("run", "--num-requests", "5", "--rate", "inf", "--json").stdout)
    assert report["config"]["rate"] is None and report["num_finished"] == 5


def test_kv_prints_json() -> None:
    result = json.loads(
        prep("kv", "--model", "llama-2-7b", "--gpu", "a100-40", "--concurrency", "200", "--json").stdout
    )
    assert result["kv_bytes_per_token"] == 512 * 1024
    assert result["tokens_each"] == result["plan"]["num_tokens"] // 200 // 16 * 16
    assert result["sequences_at_once"]["1024"] == result["plan"]["num_tokens"] // 1024


def test_fleet_prints_json_for_replicas_and_for_pools() -> None:
    one = json.loads(prep("fleet", "--num-requests", "40", "--json").stdout)
    assert one["run"]["num_finished"] == 40 and len(one["replicas"]) == 4
    two = json.loads(
        prep(
            "fleet", "--num-requests", "40", "--prefill-replicas", "1", "--decode-replicas", "2", "--json"
        ).stdout
    )
    assert two["run"]["num_finished"] == 40 == two["transfers"]
    assert (len(two["prefill"]), len(two["decode"])) == (1, 2)


def test_fleet_tells_its_scaling_events() -> None:
    result = prep(
        "fleet", "--replicas", "1", "--autoscale", "rate", "--out-above", "5", "--in-below", "1", "--sustain-out", "0",
        "--cooldown-out", "10", "--rate", "20", "--num-requests", "800", "--cold-start", "10",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "replica hours" in result.stdout and "out     replica 1" in result.stdout


def test_roofline_turns_from_memory_to_compute_at_the_ridge() -> None:
    told = json.loads(prep("roofline", "--tokens", "1,200,400", "--json").stdout)
    decode = [(step["tokens"], step["bound"]) for step in told["steps"] if step["phase"] == "decode"]
    assert decode == [(1, "memory"), (200, "memory"), (400, "compute")]
    assert all(0 < step["mfu"] < 1 and 0 < step["mbu"] < 1 for step in told["steps"])
    assert prep("roofline", "--tokens", "some").exit_code == 2


def test_list_names_every_model_and_card() -> None:
    told = json.loads(prep("list", "--json").stdout)
    assert {"llama-3-70b", "deepseek-v3", "shop"} <= {model["name"] for model in told["models"]}
    assert [card["name"] for card in told["hardware"]][-1] == "cpu"
    assert "deepseek-v3" in prep("list").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--model", "llama-3-71b"], "did you mean 'llama-3-70b'"),
        (["run", "--gpu", "h10"], "did you mean 'h100'"),
        (["kv", "--model", "llama-3-70b"], "short by"),
        (["run", "--rate", "0"], "rate must be positive"),
        (["run", "--requests", "-3"], "cannot read -3: it does not exist; "),
        (["run", "--requests", "3"], "--num-requests is their number"),
        (["run", "--prompt", "many"], "expected a number of tokens"),
        (["run", "--dtype", "fp9"], "did you mean 'fp8'"),
        (["run", "--arrivals", "sometimes"], "poisson, gamma or constant"),
        (["run", "--draft-model", "llama-3-8b"], "needs --spec-tokens"),
        (["run", "--prompt", "8000", "--output", "5000"], "exceed the context of llama-3-8b here: 8,192"),
        (["run", "--prompt", "10000000"], "exceed the context"),
        (["fleet", "--prompt", "9000-9500"], "exceed the context"),
        (["size", "--prompt", "10000000"], "exceed the context"),
        (["size", "--rate", "1e300"], "rate at most 1e+09"),
        (["run", "--max-model-len", "99999"], "more than the 8192 positions"),
        (["fleet", "--prefill-replicas", "1"], "needs both"),
        (["fleet", "--router", "random"], "unknown router"),
        (["fleet", "--autoscale", "mood"], "signal must be one of"),
        (["fleet", "--schedule", "soon", "--autoscale", "load"], "START-END:N"),
        (["fleet", "--phases", "10"], "300:4,300:12"),
        (["check", "shop", "--workload", "burst"], "no workload 'burst'; there are: one at a time"),
        (["check", "shop", "--dtype", "fp8"], "not measured on a CPU; choose one of float32"),
        (["check", "nonsense", "--saved"], "'nonsense' is not among the models measured on a CPU"),
        (["check", "--dtype", "nonsense"], "choose one of float32, bfloat16, int8, int4 as --dtype"),
        (["calibrate", "--dtype", "fp8"], "not measured on a CPU; choose one of float32"),
        (["calibrate", "llama-3-8b", "--dtype", "fp32"], "not among the models measured on a CPU"),
    ],
)
def test_a_wrong_setting_is_one_clear_line_and_exit_code_2(arguments: list[str], told: str) -> None:
    result = prep(*arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def test_a_run_needs_neither_torch_nor_numpy() -> None:
    program = (
        "import sys\n"
        "from app.cli.main import app\n"
        "app(['sim', 'run', '--num-requests', '5', '--json'], standalone_mode=False)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# -- calibration


RATES = Rates(1e10, 1e11, 1e10, 1e10, 1e-4, 1e-5, 1e-6, overlaps=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    return tmp_path


def test_a_calibration_is_kept_beside_others_and_used_by_its_model(cache: Path) -> None:
    for name, factor in (("shop", 1.0), ("dummy-386m", 2.0)):
        rates = replace(RATES, flops=factor)
        save_calibration(Calibration(name, "bfloat16", rates, 1, 10, 0.05))
    save_calibration(Calibration("shop", "float32", RATES, 1, 10, 0.05))
    assert len(load_calibrations()) == 3
    assert rates_on_cpu(get_model("shop"), "bfloat16").rates.flops == 1.0
    assert rates_on_cpu(get_model("shop"), "float32").rates == RATES
    assert rates_on_cpu(get_model("qwen2.5-0.5b"), "bfloat16").model == "dummy-386m"
    assert rates_on_cpu(get_model("shop"), "int8") is None
    assert calibration_file().parent == cache / "cache"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"format": 99, "measured": []}',
        '{"format": 1, "models": {}}',
        '{"format": 2, "measured": [3]}',
    ],
)
def test_a_file_that_cannot_be_read_counts_as_none(cache: Path, content: str) -> None:
    calibration_file().parent.mkdir(parents=True)
    calibration_file().write_text(content)
    assert load_calibrations() == {}


@pytest.mark.slow
def test_the_cpu_uses_what_was_measured(cache: Path) -> None:
    command = [
        "run",
        "--model",
        "shop",
        "--gpu",
        "cpu",
        "--prompt",
        "50",
        "--output",
        "20",
        "--num-requests",
        "3",
        "--json",
    ]
    guessed = json.loads(prep(*command).stdout)
    save_calibration(
        Calibration("shop", "float32", Rates(1e10, 1e11, 1e10, 1e10, 0.5, 0, 0, overlaps=False), 1, 10, 0.05)
    )
    measured = json.loads(prep(*command).stdout)
    assert measured["itl"]["p50"] > 0.5 > guessed["itl"]["p50"]


def test_a_cpu_says_when_its_times_are_estimates(cache: Path) -> None:
    save_calibration(Calibration("shop", "float32", RATES, 1, 10, 0.05))
    roofline = ("roofline", "--model", "shop", "--gpu", "cpu", "--tokens", "1")
    assert "measured" not in prep(*roofline).stderr
    assert "no step in bfloat16 was measured on this CPU" in prep(*roofline, "--dtype", "bf16").stderr
    assert "those of shop" in prep(*roofline[:2], "shop-draft", *roofline[3:]).stderr


def test_a_calibration_that_cannot_be_stored_is_refused_before_it_is_measured(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("PREP_HOME", str(cache / "file"))
    monkeypatch.setattr("app.bench.calibrate.calibrate", lambda *args, **settings: pytest.fail("it measured"))
    result = prep("calibrate")
    told = " ".join(result.stderr.split())
    assert result.exit_code == 3 and "cannot store a calibration in" in told
    assert "Not a directory" in told and "set PREP_HOME to a folder that you may write to" in told


def test_rates_of_torch_do_not_replace_those_of_the_kernels(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Calibration("shop", "float32", RATES, 1, 10, 0.05)
    slow = replace(kept, fit_error=0.5)
    monkeypatch.setattr("app.bench.calibrate.calibrate", lambda *args, **settings: slow)
    monkeypatch.setattr("kernels.registry.unavailable", lambda backend: "no compiler")
    save_calibration(kept)
    result = prep("calibrate", "--dtype", "float32")
    assert result.exit_code == 0 and "not saved: measured without the C++ kernels" in result.stderr
    assert load_calibrations() == {("shop", "float32"): kept}
    calibration_file().unlink()
    prep("calibrate", "--dtype", "float32")
    assert load_calibrations() == {("shop", "float32"): slow}, "without a compiler torch is what runs"


def test_saved_rates_that_do_not_exist_say_how_to_get_them(cache: Path) -> None:
    result = prep("check", "shop", "--saved")
    assert result.exit_code == 2 and "prep sim calibrate shop" in result.stderr


def test_a_check_without_a_state_has_nothing_to_resume(cache: Path) -> None:
    result = prep("check", "shop", "--resume")
    assert result.exit_code == 2 and "nothing to resume in" in result.stderr


def test_an_interrupted_check_names_the_command_that_goes_on(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **settings: object) -> None:
        raise Interrupted

    monkeypatch.setattr("app.bench.sim_check.check", interrupt)
    result = prep("check", "--dtype", "bf16", "--workload", "mixed lengths")
    assert result.exit_code == 130
    expected = "prep sim check shop --dtype bf16 --rounds 3 --workload 'mixed lengths' --resume"
    assert result.stderr.splitlines()[-1] == f"next: {expected}"


def test_an_inconclusive_check_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [Figure("mean step", live=[0.8, 1.0, 1.2], simulated=[2.0])]
    calibration = Calibration("shop", "float32", RATES, 1, 10, 0.05)
    report = CheckReport("shop", "float32", 3, calibration, [Outcome("bursts", 5, 1.0, figures)])
    monkeypatch.setattr("app.bench.sim_check.check", lambda *args, **settings: report)
    result = CliRunner().invoke(app, ["sim", "check"])
    assert result.exit_code == 4
    assert "live rounds differ too much. Close other programs, use --rounds 6" in " ".join(
        result.output.split()
    )


def test_sizing_starts_with_a_small_service() -> None:
    assert "10 requests/s" in CliRunner().invoke(app, ["sim", "size"]).output
