"""Engine settings on the command line are EngineArgs, all of them, under vLLM's names."""

from __future__ import annotations

from dataclasses import fields

import pytest
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.engine_options import HELP, NOT_OPTIONS, engine_options
from engine.config import EngineArgs


def parse(*arguments: str) -> dict[str, object]:
    """Return the settings that a command with engine options receives."""
    received: dict[str, object] = {}
    app = terminal.command_app()

    @app.command()
    @engine_options
    def command(*, engine: dict[str, object]) -> None:
        received.update(engine)

    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return received


def test_every_engine_argument_is_an_option_or_left_out_on_purpose() -> None:
    assert {f.name for f in fields(EngineArgs)} == set(HELP) | NOT_OPTIONS


def test_without_options_the_engine_gets_its_own_defaults() -> None:
    assert EngineArgs.create(**parse()) == EngineArgs()


def test_values_arrive_with_their_types() -> None:
    engine = parse(
        "--max-num-batched-tokens", "64", "--gpu-memory-utilization", "0.5", "--no-enable-prefix-caching",
        "--debug-checks", "--scheduling-policy", "priority", "--hf-overrides", '{"rope_theta": 5.0}',
    )  # fmt: skip
    args = EngineArgs.create(**engine)
    assert args.max_num_batched_tokens == 64
    assert args.gpu_memory_utilization == 0.5
    assert args.enable_prefix_caching is False
    assert args.debug_checks is True
    assert args.scheduling_policy == "priority"
    assert args.hf_overrides == {"rope_theta": 5.0}


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_overrides_that_are_no_json_object_are_refused(text: str) -> None:
    with pytest.raises(terminal.Problem, match="--hf-overrides"):
        parse("--hf-overrides", text)
