"""`prep judge`: an optional language model that grades prose. It is off until you set and test one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from app.cli import terminal
from app.cli.options import JsonOption, argument, option

if TYPE_CHECKING:
    from quizzes.free_text.settings import JudgeSettings
    from quizzes.question import Question


def show(ctx: typer.Context) -> None:
    """Show the configured judge. Without one you mark prose yourself, and no text leaves this machine."""
    if ctx.invoked_subcommand is not None:
        return
    settings = _load()
    console = terminal.out()
    if settings is None:
        console.print("no judge is configured: you mark your own prose, and probes check it")
        terminal.next_command("prep judge set http://127.0.0.1:8000/v1 --model NAME", "optional")
        return
    console.print(f"{settings.model} at {settings.url}", markup=False, soft_wrap=True)
    _print_gate(settings)


def set_(
    url: Annotated[str, argument("Base address of an OpenAI-compatible server.", metavar="URL")],
    model: Annotated[str, option("Name of the model on that server.")],
) -> None:
    """Configure a judge. Its key, if any, is read from PREP_JUDGE_API_KEY and never stored.

    Example: prep judge set http://127.0.0.1:8000/v1 --model my-model
    """
    from quizzes.free_text.settings import JudgeSettings, save

    with _told():
        path = save(JudgeSettings(url, model))
    terminal.say(f"saved in {terminal.literal(path)}", whole=True)
    terminal.out().print("Your prose answers will be sent to this address and to no other.")
    terminal.next_command("prep judge test", "its marks count once it passes")


def test(
    number: Annotated[
        int | None, option("Number of phrasings (default 60).", "--canaries", min=20, max=500)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Test the judge on texts with known marks: right, wrong, prompt injections, word salads.

    Exit code 1 if it does not pass.
    """
    from quizzes.free_text.canaries import NUMBER, build, gate
    from quizzes.free_text.judge import ask_endpoint
    from quizzes.free_text.settings import save

    settings = _load()
    if settings is None:
        raise terminal.Problem("no judge is configured", "prep judge set URL --model NAME")
    canaries = build(_questions(), number=number or NUMBER)
    if not canaries:
        raise terminal.Problem("the bank has no key points to test a judge with", code=terminal.ENVIRONMENT)
    terminal.err().print(f"asking {settings.url}, {2 * len(canaries)} calls", markup=False, soft_wrap=True)
    with terminal.progress(len(canaries), "canaries") as advance:
        ask = ask_endpoint(settings.endpoint)
        with _told():
            result = gate(ask, canaries, settings.model, advance=lambda canary, _: advance(canary.kind))
    tested = replace(settings, gate=result)
    with _told():
        save(tested)
    if json:
        terminal.print_json({**asdict(result), "passed": result.is_passed, "failures": result.failures()})
    else:
        _print_gate(tested)
    if not result.is_passed:
        raise typer.Exit(terminal.CHECKS_FAILED)


def off() -> None:
    """Remove the judge."""
    from quizzes.free_text.settings import forget

    terminal.out().print("the judge is removed" if forget() else "no judge was configured")


def _questions() -> list[Question]:
    """Return the questions with key points that are not retired."""
    from quizzes.question_bank import load_bank

    bank = load_bank()
    return [bank.question(entry.id) for entry in bank if entry.kind in ("free", "design")]


def _load() -> JudgeSettings | None:
    from quizzes.free_text.settings import load

    with _told():
        return load()


@contextmanager
def _told() -> Iterator[None]:
    from quizzes.free_text.endpoint import JudgeError

    try:
        yield
    except JudgeError as error:
        raise terminal.Problem(str(error), code=terminal.ENVIRONMENT) from None


def _print_gate(settings: JudgeSettings) -> None:
    console = terminal.out()
    result = settings.gate
    if result is not None:
        console.print(
            f"{result.canaries} canaries: agreed on {result.agreement:.0%}, accepted {result.false_accepts:.0%} of "
            f"the wrong texts, obeyed {result.injections} injections"
        )
    console.print(
        f"{terminal.mark(True)} its marks count beside yours"
        if settings.counts
        else f"{terminal.mark(False)} its marks do not count: {escape(settings.why_not())}"
    )
    if result is None:
        terminal.next_command("prep judge test")


judge = terminal.command_app(set_, test, off)
judge.callback(invoke_without_command=True)(show)
