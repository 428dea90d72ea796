"""Options declared once as dataclass fields and shared by commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from app.cli.options import option_groups


@dataclass(frozen=True)
class Base:
    size: Annotated[int, typer.Option(min=1, help="How large.")] = 1


@dataclass(frozen=True)
class Traffic(Base):
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 4.0
    is_bursty: Annotated[bool, typer.Option("--bursty/--no-bursty")] = False


app = typer.Typer()


@app.command()
@option_groups
def slow(traffic: Traffic, json: Annotated[bool, typer.Option("--json")] = False) -> None:
    print(traffic, json)


@app.command()
@option_groups
def fast(traffic: Traffic = Traffic(rate=20.0)) -> None:  # noqa: B008 - frozen
    print(traffic)


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    return result.output.strip()


def test_a_group_becomes_options_of_the_command() -> None:
    assert (
        said("slow", "--rate", "5", "--bursty", "--json") == "Traffic(size=1, rate=5.0, is_bursty=True) True"
    )
    assert "How large." in said("slow", "--help")


def test_a_command_may_have_defaults_of_its_own() -> None:
    assert said("slow") == "Traffic(size=1, rate=4.0, is_bursty=False) False"
    assert said("fast") == "Traffic(size=1, rate=20.0, is_bursty=False)"


def test_limits_hold() -> None:
    assert "greater than or equal to 1" in said("fast", "--size", "0")
