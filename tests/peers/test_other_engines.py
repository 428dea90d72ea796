"""`prep bench peers`: ratios and limits, resuming, engines that are missing; and the sides of other engines.

Tests of a side compare its tokens with ours: an engine that computes something else is no yardstick. Those of llama.cpp
are skipped unless PREP_LLAMA_CPP_PYTHON is set.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.bench import peers, peers_results
from app.bench.environments import LLAMA_CPP, MissingEngine, python_of
from app.bench.peers import OURS, CannotStart, Cell, PeersReport, Workload, load_report
from app.bench.settings import OTHER_ENGINES, complete_job
from app.bench.side import Side, SideSpec, prep_spec
from app.bench.sides.prep_side import PrepEngine
from app.bench.turns import SideReport
from app.bench.workload import Lengths
from app.cli.main import app
from engine import LLM, SamplingParams
from kernels import registry
from kernels.bench.limits import Limits, Machine

MACHINE = Machine("a machine", "2.13.0", None, None, "3.11", "abc", "2026-01-01")
LIMITS = Limits(
    40e9, 50e9, {"float32": 0.4e12, "bfloat16": 0.8e12, "int8": 1.6e12}, read_bandwidth_one_thread=30e9
)
TEXTS = (
    "Silver Harbor costs 640 yen. Silver Harbor spans 12 volumes. How much is Silver Harbor?",
    "The price is",
    "Night Ferry is sold out until Friday. Is Night Ferry in stock? What else do you recommend?",
    "Hello",
    "Paper Comet spans 5 volumes. Glass Orchard spans 9 volumes. Which of the two is longer?",
)


def interrupt(text: str) -> None:
    raise KeyboardInterrupt


def report(*cells: tuple[str, str, str, list[float]]) -> PeersReport:
    found = PeersReport(MACHINE, 2, 3, LIMITS, num_weights={"shop": 4_000_000, "dummy-386m": 386_000_000})
    found.vocab_sizes = {"shop": 2048, "dummy-386m": 32_000}
    for workload, precision, engine, figures in cells:
        rounds = SideReport(engine, engine=f"{engine} 1.0", figures=figures)
        found.cells.append(Cell(workload, precision, engine, rounds))
    return found


def test_the_limit_of_one_request_is_the_bandwidth_over_the_bytes_of_the_weights() -> None:
    single = peers.WORKLOADS["386m-1"]
    limit = peers_results.limit_tokens_per_s(report(), single, "bf16")
    assert limit == pytest.approx(50e9 / (386_000_000 * 2))
    assert peers_results.limit_tokens_per_s(report(), single, "int8") == pytest.approx(2 * limit)
    assert peers_results.limit_tokens_per_s(report(), single, "fp32") == limit, "the numbers are bf16"


def test_the_limit_of_a_full_batch_is_the_rate_of_matrix_products() -> None:
    workload = peers.WORKLOADS["shop-128"]
    work = workload.draw(2048, "0")
    tokens = sum(work.max_tokens)
    flops = 2 * 4_000_000 * (sum(map(len, work.prompts)) + tokens)
    limit = peers_results.limit_tokens_per_s(report(), workload, "bf16")
    assert limit == pytest.approx(tokens / (flops / 0.8e12))


def test_an_aim_compares_engines_round_by_round_and_takes_the_best_of_several_rivals() -> None:
    found = report(
        ("386m-32", "bf16", OURS, [300.0, 400.0, 900.0]),
        ("386m-32", "bf16", "vllm", [100.0, 100.0, 100.0]),
        ("386m-32", "bf16", "vllm-processes", [250.0, 1.0, 999.0]),
    )
    [aim] = peers_results.aims(found)
    assert "vLLM's best mode" in aim.what and aim.measured == 300 / 250 and not aim.met


def test_an_aim_compares_medians_of_two_precisions() -> None:
    found = report(
        ("386m-32", "fp32", OURS, [100.0, 200.0, 300.0]), ("386m-32", "bf16", OURS, [500.0, 100.0, 300.0])
    )
    [aim] = peers_results.aims(found)
    assert aim.what.startswith("386m-32: bf16 of fp32") and aim.measured == 300 / 200


def test_an_aim_is_the_median_share_of_the_bandwidth() -> None:
    found = report((*peers.READ, [40.0]))
    found.cells[0].read_shares = [0.8, 0.95, 0.92]
    [aim] = peers_results.aims(found)
    assert "bandwidth" in aim.what and aim.measured == 0.92 and aim.met


@pytest.fixture
def computed_by() -> Iterator[Callable[[str], None]]:
    """Choose the form in which products are computed in this process, until the test ends."""
    yield lambda form: registry.force("linear", form)
    registry.force("linear", None)


@pytest.mark.parametrize("form", ["cpu", "reference"])
def test_our_side_compares_its_reading_with_torchs(
    form: str, computed_by: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_by(form)
    side = PrepEngine("shop", {"dtype": "bfloat16", "skip_tokenizer_init": True})
    assert side._read_seconds() > 0
    monkeypatch.setattr(side, "_read_seconds", lambda: 1000.0)
    share = side.read_share([[5, 6, 7]], [7])
    assert share is not None and share > 1000, "no step takes a second"
    assert side.read_share([[5, 6, 7]], [2]) is None


def test_the_report_has_ratios_and_says_what_is_missing(tmp_path: Path) -> None:
    found = report(("shop-128", "bf16", OURS, [9000.0]), ("shop-128", "bf16", "vllm", [3000.0]))
    found.missing["llama.cpp"] = "llama.cpp needs a separate environment; create one"
    for workload in ("shop-128", "386m-1"):
        cell = Cell(workload, "bf16", "transformers", SideReport("transformers"), error="it died\nearly")
        found.cells.append(cell)
    peers_results.write(found, tmp_path / "RESULTS.md")
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| 3,000 (3.00 x) |" in text and "vllm 1.0; 2 threads each" in text
    assert "read 50.0 GB/s with 2 threads and 30.0 GB/s with one" in text
    assert "* llama.cpp: llama.cpp needs a separate environment; create one" in text
    assert "* transformers, shop-128 in bf16, 386m-1 in bf16: it died early" in text


def test_a_saved_report_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    found = report(("shop-128", "bf16", OURS, [1.0, 2.0]))
    found.save(tmp_path / "peers.json")
    assert load_report(tmp_path / "peers.json") == found


@pytest.mark.parametrize(
    "damage",
    [
        {"workload": "nope"},
        {"precision": "fp99"},
        {"engine": "nope"},
        {"rounds": {"name": "prep", "figures": "abc"}},
        {"rounds": {"name": "prep", "figures": [0.0]}},
    ],
)
def test_a_measurement_that_no_run_writes_is_found_at_once(damage: dict[str, Any], tmp_path: Path) -> None:
    raw = asdict(report(("shop-128", "bf16", OURS, [1.0])))
    raw["cells"][0] |= damage
    (tmp_path / "peers.json").write_text(json.dumps(raw))
    with pytest.raises(CannotStart, match="is damaged or of another version of prep bench peers"):
        load_report(tmp_path / "peers.json")


def test_a_folder_in_place_of_a_report_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="cannot be read: Is a directory"):
        load_report(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', '{"x": 1}', '{"machine": []}', "\0"])
def test_a_file_that_is_no_report_is_said_so(text: str, tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(text)
    with pytest.raises(CannotStart, match="is damaged or of another version of prep bench peers"):
        load_report(tmp_path / "peers.json")


def test_rounds_of_another_commit_are_not_continued(tmp_path: Path) -> None:
    found = report(("shop-128", "bf16", OURS, [1.0]))
    found.machine = replace(MACHINE, commit="another")
    found.save(tmp_path / "peers.json")
    asked: dict[str, Any] = {"workloads": list(peers.WORKLOADS.values()), "precisions": ["fp32"]}
    with pytest.raises(CannotStart, match="the commit was another, now it is "):
        peers.measure(interrupt, **asked, engines=[], rounds=1, saved=tmp_path / "peers.json", resume=True)


def test_rounds_with_our_kernels_are_not_continued_without_them(
    tmp_path: Path, computed_by: Callable[[str], None]
) -> None:
    found = report(("shop-128", "bf16", OURS, [1.0]))
    found.machine = peers.this_machine()
    found.save(tmp_path / "peers.json")
    computed_by("reference")
    asked: dict[str, Any] = {"workloads": list(peers.WORKLOADS.values()), "precisions": ["fp32"]}
    with pytest.raises(
        CannotStart, match=r"the machine was .*, now it is .*; prep without its C\+\+ kernels"
    ):
        peers.measure(interrupt, **asked, engines=[], rounds=1, saved=tmp_path / "peers.json", resume=True)


def test_rounds_of_an_unfinished_run_are_not_overwritten(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    unfinished = report(("shop-128", "bf16", OURS, [1.0]))
    unfinished.interrupted = True
    (tmp_path / "runs").mkdir()
    unfinished.save(peers.SAVED)
    result = CliRunner().invoke(app, ["bench", "peers"])
    assert result.exit_code == 2 and "peers.json holds the rounds of an unfinished run" in result.stderr
    assert "add --resume to continue it, or delete runs/peers.json" in result.stderr
    assert load_report(peers.SAVED) == unfinished


def test_a_run_interrupted_before_its_first_round_saves_nothing(tmp_path: Path) -> None:
    finished = report(("shop-128", "bf16", OURS, [1.0]))
    finished.save(tmp_path / "peers.json")
    asked: dict[str, Any] = {"workloads": list(peers.WORKLOADS.values()), "precisions": ["fp32"]}
    again = peers.measure(interrupt, **asked, engines=[OURS], rounds=1, saved=tmp_path / "peers.json")
    assert again.interrupted and load_report(tmp_path / "peers.json") == finished


def test_without_saved_rounds_there_is_nothing_to_resume(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options, file in ([], "peers.json"), (["--quick"], "peers-quick.json"):
        result = CliRunner().invoke(app, ["bench", "peers", "--resume", *options])
        assert result.exit_code == 2 and f"nothing to resume in runs/{file}" in result.stderr


def test_ctrl_c_is_answered_with_the_command_that_continues(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    unfinished = report(("shop-128", "bf16", OURS, [1.0]))
    unfinished.interrupted = True
    for has_rounds in (True, False):
        monkeypatch.setattr(peers, "measure", lambda tell, **asked: unfinished)
        result = CliRunner().invoke(app, ["bench", "peers", "--workloads", "shop-128", "--rounds", "2"])
        command = "bench peers --workloads shop-128 --rounds 2 --resume"
        assert result.exit_code == 130 and (command in result.stderr) == has_rounds
        assert ("threads each" in result.stdout) == ("workload" in result.stdout) == has_rounds
        unfinished.cells.clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workloads", "shop-12"], "--workloads: 'shop-12' is not one of shop-128, "),
        (["--precisions", "fp16"], "--precisions: 'fp16' is not one of fp32, "),
        (["--engines", "prep,tgi"], "--engines: 'tgi' is not one of prep, llama.cpp, "),
        (["--workloads", "shop-128", "--precisions", "int8,int4"], "no workload is measured in int8, int4"),
        (["--quick", "--write"], "RESULTS.md holds whole runs only"),
        (["--rounds", "1", "--write"], "whole runs only, of at least 3 rounds"),
    ],
)
def test_wrong_options_are_told(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "peers", *options])
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize("engines", ["llama.cpp", "vllm,vllm-processes"])
def test_without_any_engine_nothing_is_measured(
    engines: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("PREP_LLAMA_CPP_PYTHON", "PREP_VLLM_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(peers, "measure_limits", lambda device, tell: pytest.fail("it measures"))
    result = CliRunner().invoke(app, ["bench", "peers", "--engines", engines])
    assert result.exit_code == 2 and "create an environment" in result.stderr


def test_a_missing_engine_is_answered_with_the_commands_that_install_it(monkeypatch) -> None:
    monkeypatch.delenv("PREP_LLAMA_CPP_PYTHON", raising=False)
    with pytest.raises(MissingEngine, match="name its interpreter with PREP_LLAMA_CPP_PYTHON") as missing:
        python_of(LLAMA_CPP)
    assert "--no-binary llama-cpp-python" in missing.value.make


def test_a_wrong_interpreter_is_told_with_its_variable(monkeypatch) -> None:
    monkeypatch.setenv("PREP_LLAMA_CPP_PYTHON", "/nonexist")
    with pytest.raises(MissingEngine, match="PREP_LLAMA_CPP_PYTHON=/nonexist: no such program"):
        python_of(LLAMA_CPP)
    monkeypatch.setenv("PREP_LLAMA_CPP_PYTHON", sys.executable)
    with pytest.raises(MissingEngine, match="PREP_LLAMA_CPP_PYTHON=.* has no module llama_cpp"):
        python_of(LLAMA_CPP)


@pytest.mark.slow
def test_an_engine_without_the_precision_is_reported_with_the_reason(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(peers, "measure_limits", lambda device, tell: LIMITS)
    workload = Workload("tiny", "shop", 3, Lengths(4, 8), Lengths(2, 4), ("int8",))
    asked: dict[str, Any] = {"workloads": [workload], "precisions": ["int8"], "rounds": 1}
    found = peers.measure(lambda text: None, **asked, engines=["transformers"], saved=tmp_path / "peers.json")
    [note] = peers_results.problems(found)
    assert note.startswith("transformers, tiny in int8: transformers computes these weights as floats")


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("PREP_LLAMA_CPP_PYTHON", raising=False)
    workload = Workload("tiny", "shop", 3, Lengths(4, 8), Lengths(2, 4), ("fp32",))
    monkeypatch.setitem(peers.WORKLOADS, "tiny", workload)
    asked: dict[str, Any] = {"workloads": [workload], "precisions": ["fp32"], "rounds": 2}
    asked |= {"engines": [OURS, "llama.cpp"], "saved": tmp_path / "peers.json"}

    def interrupt_in_round_2(text: str) -> None:
        if "round 2 of 2" in text:
            raise KeyboardInterrupt

    first = peers.measure(interrupt_in_round_2, **asked)
    assert first.interrupted and len(first.cells[0].rounds.figures) == 1
    whole = peers.measure(lambda text: None, **asked, resume=True)
    assert len(whole.cells[0].rounds.figures) == 2 and not whole.interrupted
    assert whole.cells[0].rounds.figures[0] == first.cells[0].rounds.figures[0]
    assert "PREP_LLAMA_CPP_PYTHON" in whole.missing["llama.cpp"]


def tokens_of(spec: SideSpec, folder: Path, prompts: list[list[int]], max_tokens: list[int]) -> Any:
    with Side(spec, str(folder), threads=2) as side:
        side.wait_ready()
        assert side.ask("generate", prompts, max_tokens).result == max_tokens
        return side.ask("tokens", prompts, max_tokens).result["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama.cpp", "transformers"])
def test_another_engine_computes_our_tokens(name: str, tmp_path: Path) -> None:
    """Prompts of several lengths; llama.cpp gets fewer slots than requests, so that it refills them."""
    other = OTHER_ENGINES[name]
    if name == "llama.cpp" and not os.environ.get(other.environment.variable):
        pytest.skip("set PREP_LLAMA_CPP_PYTHON")
    max_tokens = [24, 7, 16, 3, 12]
    with LLM("shop", dtype="float32") as llm:
        tokenizer = llm.get_tokenizer()
        prompts = [tokenizer.encode(text) for text in TEXTS]
        params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in max_tokens]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        ours = [output.outputs[0].token_ids for output in llm.generate(inputs, params, use_tqdm=False)]
    job = complete_job("shop", {"dtype": "float32"}, num_seqs=2, num_tokens=256, scratch=tmp_path)
    spec = other.side(python_of(other.environment), job)
    assert tokens_of(spec, job.config.path, prompts, max_tokens) == [list(tokens) for tokens in ours]


def test_precisions_have_formats_of_the_same_size_in_other_engines(tmp_path: Path) -> None:
    expected = {"fp32": "f32", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}
    for precision, kind in expected.items():
        engine = peers.engine_arguments(precision)
        job = complete_job("shop", engine, num_seqs=4, num_tokens=64, scratch=tmp_path)
        assert OTHER_ENGINES["llama.cpp"].side("python", job).engine["kind"] == kind
        assert prep_spec(job.engine).engine["dtype"] == ("float32" if precision == "fp32" else "bfloat16")
        if precision.startswith("int"):
            for name in ("vllm", "vllm-processes", "transformers"):
                with pytest.raises(ValueError, match="as floats"):
                    OTHER_ENGINES[name].side("python", job)
