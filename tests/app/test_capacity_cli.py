"""`prep capacity`: the shipped plans, explanations, commands, refusals."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.capacity import EXAMPLES
from app.cli.main import app
from engine.config import EngineArgs


def prep(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["capacity", *arguments])


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.yaml"))])
def test_a_shipped_plan_is_worked_out(name: str) -> None:
    result = prep(name, "--no-simulate", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == (0 if found["meets_limits"] else 1)
    figures = found["figures"]
    assert figures["total"]["value"] >= figures["replicas"]["value"] >= 1
    assert all(figure["formula"] and figure["filled"] for figure in figures.values())


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.yaml"))])
def test_the_lines_of_the_cost_chart_fit_eighty_columns(name: str) -> None:
    lines = prep(name, "--no-simulate").stdout.splitlines()
    bars = [line for line in lines if "M req |" in line]
    if not bars:
        assert "cost per month by volume" not in "\n".join(lines)
        return
    place = lines.index(bars[0])
    assert lines[place : place + len(bars)] == bars, "a bar is one line"
    assert all(len(line) < 80 for line in [*bars, lines[place + len(bars)]])


def test_ten_thousand_requests_per_second_have_no_time_for_200_tokens() -> None:
    result = prep("ten_thousand_rps", "--no-simulate")
    assert result.exit_code == 1
    assert "of 200 tokens fit" in result.stdout.replace("\n", " ")


def test_formula_and_simulated_fleet_agree_on_a_small_plan() -> None:
    found = json.loads(prep("chat_startup", "--json").stdout)
    gaps = {gap["title"]: gap for gap in found["gaps"]}
    tpot = gaps["Time per output token (TPOT), mean"]
    assert tpot["run"] == pytest.approx(tpot["formula"], rel=0.15)
    assert all(gap["why"] for gap in gaps.values())


def test_why_explains_a_figure_down_to_its_inputs() -> None:
    result = prep("two_regions", "--why", "monthly")
    assert "Weights on a GPU (weights)" in result.stdout
    tree = json.loads(prep("two_regions", "--why", "monthly", "--json").stdout)
    assert list(tree)[0] == "monthly" and {"total", "replicas", "params"} <= set(tree)


def test_the_commands_name_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    result = prep("rag", "--serve-command")
    vllm, ours = result.stdout.strip().splitlines()
    assert vllm.startswith("vllm serve meta-llama/") and "--tensor-parallel-size 4" in vllm
    assert ours.split()[2:] == vllm.split()[2:]
    names = [word[2:].replace("-", "_") for word in ours.split() if word.startswith("--")]
    assert all(name in EngineArgs.__dataclass_fields__ for name in names)


def test_the_break_even_chart_is_svg(tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    prep("code_completion", "--no-simulate", "--svg", str(path))
    text = path.read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg") and "break-even" in text


def test_every_fault_of_a_plan_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "model: llama-3-8b\nhardware:\n  gpu: h10\n"
        "traffic:\n  rate: -5 req/s\n  promt: 10\n  prompt: 10\n  output: 9 kg\n"
    )
    result = prep(str(path))
    assert result.exit_code == 2
    for place, words in (
        (3, "did you mean 'h100'"),
        (5, "out of bounds"),
        (6, "did you mean 'prompt'"),
        (8, "'kg'"),
    ):
        assert any(f":{place}:" in line and words in line for line in result.stderr.splitlines()), (
            result.stderr
        )


def test_a_misplaced_key_is_told_where_it_belongs_and_impossible_values_what_is_allowed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "model: llama-3-8b\ngpu: h100\nhardware: {gpu: h100, tp: 1000, wake: .nan}\n"
        "traffic: {rate: 9 req/parsec, prompt: 10, output: 1, prefixes: two}\nslo: {ttft: 0 ms}\nprice: free\n"
    )
    result = prep(str(path))
    assert result.exit_code == 2 and "Input should" not in result.stderr
    for line, words in (
        (2, "gpu: unknown setting here; there is hardware.gpu or price.gpu"),
        (3, "hardware.tp: must be at most 64, got 1000"),
        (3, "hardware.wake: nan is not a number with a unit; write for example '200 ms'"),
        (
            4,
            "traffic.rate: '9 req/parsec' has the unknown unit 'req/parsec'; did you mean 'req/s'? units: req/s,",
        ),
        (4, "traffic.output: must be at least 2, got 1"),
        (4, "traffic.prefixes: must be a whole number, got 'two'"),
        (5, "slo.ttft: must be more than 0, got '0 ms'"),
        (6, "price: must be a mapping with gpu, got 'free'"),
    ):
        assert f"{path}:{line}: {words}" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "the file is empty; expected a plan"), ("- a", "expected a plan"), ("a: [", "not valid YAML")],
)
def test_a_file_that_is_no_plan_says_what_a_plan_is(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert f"{path}:1: {words}" in prep(str(path)).stderr


def test_a_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "did you mean 'two_regions'" in prep("two_region").stderr
    assert "did you mean 'total'" in prep("rag", "--why", "totl").stderr
