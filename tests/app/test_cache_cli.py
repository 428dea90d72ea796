"""prep cache lint: what it prints, its JSON and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from app.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "engine/frontend/example_prompts.jsonl")


def lint(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cache", "lint", *arguments])


def test_it_names_the_places_that_cost_hits_and_says_what_to_do() -> None:
    done = lint(EXAMPLE)
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "1. date or time in 11 requests" in done.stdout and "2. id in 11 requests" in done.stdout
    assert "move it behind the stable text" in done.stdout


def test_a_script_gets_the_figures_and_the_exit_code_says_whether_the_rate_is_reached() -> None:
    low = lint(EXAMPLE, "--json", "--min-hit-rate", "0.5")
    figures = json.loads(low.stdout)
    assert low.exit_code == 1 and figures["hit_rate"] < 0.5 < figures["possible_hit_rate"]
    assert figures["num_requests"] == 12 and len(figures["places"]) == 2
    assert lint(EXAMPLE, "--min-hit-rate", "0.05").exit_code == 0


def test_texts_of_a_log_cannot_control_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    parts = [f"\x1b]0;title\x07 [red]{number}[/] " + "The same text follows. " * 20 for number in range(3)]
    log.write_text("".join(json.dumps({"prompt": part}) + "\n" for part in parts))
    done = lint(str(log))
    assert done.exit_code == 0 and "\x1b]" not in done.stdout and "[red]" in done.stdout


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = lint(str(tmp_path / "none.jsonl"))
    assert done.exit_code != 0 and "cannot read" in done.output
