"""`prep experiments`: names, codes, arguments and results."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from app.cli.experiments import experiments as app
from app.cli.main import app as prep
from app.cli.terminal import Problem
from quizzes.experiments import registry


def output(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_codes_name_their_experiments_with_titles() -> None:
    text = output("list", "--codes")
    block = text.split("\nE13\n")[1].split("\nE14\n")[0]
    assert "batching.static_vs_continuous" in block and "Compare static with continuous batching" in block
    assert all(f"\nE{number:02d}\n" in f"\n{text}" for number in range(1, 67))


def test_show_takes_a_code_of_one_experiment_and_lists_those_of_others() -> None:
    by_code: dict[str, list[str]] = {}
    for name in registry.names():
        for code in registry.get(name).catalogue:
            by_code.setdefault(code, []).append(name)
    code, (only,) = next(entry for entry in by_code.items() if len(entry[1]) == 1)
    assert output("show", code.lower()) == output("show", only)
    error = CliRunner().invoke(app, ["show", "E13"]).exception
    assert isinstance(error, Problem) and all(name in str(error) for name in by_code["E13"])


def test_codes_can_be_limited_to_a_topic() -> None:
    assert "batching." not in output("list", "--codes", "--topic", "memory")


def test_show_explains_every_field_of_the_result() -> None:
    text = " ".join(output("show", "operations.canary").split())
    for field in registry.get("operations.canary").result_fields:
        assert field.name in text and field.meaning in text


def test_the_help_of_run_lists_the_arguments_of_the_named_experiment() -> None:
    experiment = registry.get("batching.static_vs_continuous")
    shown = CliRunner().invoke(prep, ["run", experiment.name, "--help"])
    assert shown.exit_code == 0
    for name, parameter in experiment.parameters.items():
        default = parameter.default
        typed = ",".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
        assert f"--set {name}={typed}" in shown.stdout
        again = CliRunner().invoke(prep, ["run", experiment.name, "--set", f"{name}={typed}", "--json"])
        assert again.exit_code == 0, "a default is shown as it is typed"
    assert "Arguments of" not in CliRunner().invoke(prep, ["run", "--help"]).stdout
    unknown = CliRunner().invoke(prep, ["run", "batching.static_vs_continuos", "--help"])
    assert unknown.exit_code != 0 and "did you mean 'batching.static_vs_continuous'" in unknown.output


def test_json_has_units_of_the_result() -> None:
    shown = json.loads(output("show", "batching.static_vs_continuous", "--json"))
    assert shown["result"]["static_steps"] == "steps"


def test_every_title_is_one_sentence_that_fits_a_line() -> None:
    titles = [registry.get(name).title for name in registry.names()]
    assert [t for t in titles if not t.endswith(".") or ". " in t or len(t) > 116] == []
