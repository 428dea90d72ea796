"""The `prep` command. `prep --help` imports no subcommand: the table below is all it needs.

Importing torch takes seconds, so a module is imported when its command runs, and only the commands
that run a model import the engine's upper floors.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from app.cli import terminal


class Entry(NamedTuple):
    module: str
    help: str
    panel: str


SEE = "See it work"
PRACTISE = "Practise"
RUN = "Run a model"
LOOK = "Measure and look inside"
CARE = "Care for the installation"

COMMANDS = {
    "demo": Entry("app.cli.demo", "A tour of the live engine, under a minute, no input needed.", SEE),
    "app": Entry("app.cli.app", "The visual debugger in the browser: blocks and batch, step by step.", SEE),
    "chat": Entry("app.cli.chat", "Talk to a model; the answer streams.", SEE),
    "start": Entry("app.cli.start", "Role, interview date, twelve questions: where to begin.", PRACTISE),
    "today": Entry("app.cli.today", "What is due, what is new, where you stand.", PRACTISE),
    "quiz": Entry("app.cli.quiz", "Interview questions; the live engine judges.", PRACTISE),
    "review": Entry("app.cli.review", "What is due again, with new figures.", PRACTISE),
    "answer": Entry("app.cli.answer", "How to say it in 30 seconds, in 2 minutes, and deeper.", PRACTISE),
    "progress": Entry("app.cli.progress", "Per topic, calibration, readiness.", PRACTISE),
    "run": Entry("app.cli.run", "Run one experiment with your own figures.", PRACTISE),
    "experiments": Entry("app.cli.experiments", "What questions are decided by: list, show.", PRACTISE),
    "claims": Entry(
        "app.cli.claims", "What prep guides claim: vote, run the test, read the verdict.", PRACTISE
    ),
    "judge": Entry("app.cli.judge", "An optional model that marks prose: set, test, off.", PRACTISE),
    "generate": Entry("app.cli.generate", "Complete prompts with the shipped model or any checkpoint.", RUN),
    "zoo": Entry("app.cli.zoo", "The shipped models: list, evaluate, train.", RUN),
    "sim": Entry("app.cli.sim", "Simulate serving: named models and GPUs, capacity, fleets.", LOOK),
    "bench": Entry("app.cli.bench", "Throughput, latency, start-up and scheduler benchmarks.", LOOK),
    "trace": Entry("app.cli.trace", "Record what every step did, and ask why.", LOOK),
    "disagg": Entry("app.cli.disagg", "Prefill and decode in two processes, KV moved between them.", LOOK),
    "kernels": Entry("app.cli.kernels", "The engine's kernels: list, check, measure, read.", LOOK),
    "bank": Entry("app.cli.bank", "The question bank, for its authors: lint, preview, new, stats.", CARE),
    "state": Entry("app.cli.state", "Your answers: where, export, import, rebuild, backup, reset.", CARE),
    "doctor": Entry("app.cli.doctor", "Check this installation and machine.", CARE),
    "test": Entry("app.cli.test", "Run the linters and the test suite.", CARE),
    "version": Entry("app.cli.version", "Versions of prep, Python and PyTorch.", CARE),
}


class LazyGroup(TyperGroup):
    """A command group whose members are stubs for the help page until one of them is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help, rich_help_panel=entry.panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            command = typer.main.get_command(import_module(COMMANDS[args[0]].module).app)
            command.name = args[0]
            self.add_command(command)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; whatever goes wrong ends as one clear line and an exit code."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            terminal.silence_broken_pipe()
            raise typer.Exit(0) from None
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if (
                hasattr(error, "format_message") or terminal.debug_wanted()
            ):  # the first: a usage error, told by typer
                raise
            raise terminal.explain(error) from None


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold cyan]prep demo[/], then [bold cyan]prep chat shop[/]. "
    "Every command has examples: [bold cyan]prep generate --help[/]",
)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks (also: PREP_DEBUG=1).")] = False,
) -> None:
    """A readable LLM inference engine, and a workbench around it."""
    if debug:
        os.environ["PREP_DEBUG"] = "1"
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main() -> None:
    """Entry point of the `prep` console script."""
    try:
        app(prog_name="prep")
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            terminal.silence_broken_pipe()


if __name__ == "__main__":
    main()
