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
from app.cli.options import remove_empty_folders


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
    "demo": Entry("app.cli.demo", "Watch the live engine run out of memory, preempt and recover.", SEE),
    "app": Entry("app.cli.app", "Open the visual debugger in the browser.", SEE),
    "chat": Entry("app.cli.chat", "Talk to a model and watch the answer stream.", SEE),
    "lesson": Entry("app.cli.lesson", "Build an inference engine in notebooks.", PRACTISE),
    "lab": Entry("app.cli.lab", "Write parts of the engine in your own editor.", PRACTISE),
    "start": Entry("app.cli.start", "Choose a role and an interview date, and find your level.", PRACTISE),
    "plan": Entry("app.cli.plan", "Plan every day until the interview.", PRACTISE),
    "today": Entry("app.cli.today", "Show what to practise today.", PRACTISE),
    "quiz": Entry("app.cli.quiz", "Answer interview questions; the live engine grades them.", PRACTISE),
    "review": Entry("app.cli.review", "Repeat the questions that are due, with new numbers.", PRACTISE),
    "mock": Entry("app.cli.mock", "Sit a mock interview; the interviewer runs experiments.", PRACTISE),
    "drill": Entry("app.cli.drill", "Be on call: find and repair what is wrong with a server.", PRACTISE),
    "answer": Entry(
        "app.cli.answer", "Read the spoken answer to a question: 30 seconds, 2 minutes, more.", PRACTISE
    ),
    "cards": Entry("app.cli.cards", "Read cards of engines, hardware, papers and releases.", PRACTISE),
    "progress": Entry("app.cli.progress", "Show scores per topic, calibration and readiness.", PRACTISE),
    "run": Entry("app.cli.run", "Run one experiment with your own settings.", PRACTISE),
    "experiments": Entry("app.cli.experiments", "List the experiments behind the questions.", PRACTISE),
    "claims": Entry("app.cli.claims", "Vote on claims from interview guides, then run the test.", PRACTISE),
    "judge": Entry("app.cli.judge", "Configure an optional model that grades prose answers.", PRACTISE),
    "mine": Entry("app.cli.mine", "Run the engine made of your own pieces from the lessons.", PRACTISE),
    "generate": Entry("app.cli.generate", "Complete prompts with the shipped model or any checkpoint.", RUN),
    "serve": Entry("app.cli.serve", "Serve a model over HTTP, as OpenAI and vLLM do.", RUN),
    "gateway": Entry("app.cli.gateway", "Put several servers behind one address.", RUN),
    "fleet": Entry("app.cli.fleet", "Run replicas, gateway and autoscaler on this machine.", RUN),
    "adapter": Entry("app.cli.adapter", "Keep versions of LoRA adapters; promote, roll back.", RUN),
    "zoo": Entry("app.cli.zoo", "List, evaluate, train and quantise the shipped models.", RUN),
    "sim": Entry("app.cli.sim", "Simulate serving any model on any GPU.", LOOK),
    "capacity": Entry("app.cli.capacity", "Size a service from a plan: GPUs, cost, failures.", LOOK),
    "bench": Entry("app.cli.bench", "Measure throughput, latency and features.", LOOK),
    "load": Entry("app.cli.load", "Send load to a server and measure what its clients see.", LOOK),
    "top": Entry("app.cli.top", "Watch a running server: batch, KV cache, latencies.", LOOK),
    "diagnose": Entry("app.cli.diagnose", "Name the cause of a slow or failing server.", LOOK),
    "cache": Entry("app.cli.cache", "Find what keeps prompts from hitting the prefix cache.", LOOK),
    "upgrade": Entry("app.cli.upgrade", "Compare two versions of a server before the upgrade.", LOOK),
    "trace": Entry("app.cli.trace", "Record every step of a run, then ask why.", LOOK),
    "disagg": Entry("app.cli.disagg", "Run prefill and decode in two processes.", LOOK),
    "kernels": Entry("app.cli.kernels", "List, check, measure and explain the kernels.", LOOK),
    "bank": Entry("app.cli.bank", "Lint and preview questions.", CARE),
    "new": Entry("app.cli.new", "Write the skeleton of a question, a lab, a command ...", CARE),
    "state": Entry("app.cli.state", "Export, import, back up or reset your answers.", CARE),
    "doctor": Entry("app.cli.doctor", "Check this installation and machine.", CARE),
    "site": Entry("app.cli.site", "Build and show the documentation as a site.", CARE),
    "test": Entry("app.cli.test", "Run the linters and the tests.", CARE),
    "version": Entry("app.cli.doctor", "Print the versions of prep, Python and PyTorch.", CARE),
}


WAITING = frozenset("bench disagg doctor drill fleet kernels lab mine serve sim upgrade zoo".split())
"""Commands that measure an engine or run one for long: they wait for the compiler of the CPU kernels. The others answer
at once on a fresh machine, with torch."""


class LazyGroup(TyperGroup):
    """A command group whose members are stubs for the help page until one of them is called."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help, rich_help_panel=entry.panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command: its module's function or typer app of the same name."""
        if args and args[0] in COMMANDS:
            if args[0] in WAITING:
                os.environ.setdefault("PREP_KERNELS_BUILD", "wait")
            target = getattr(import_module(COMMANDS[args[0]].module), args[0])
            command = typer.main.get_command(
                target if isinstance(target, typer.Typer) else terminal.command_app(target)
            )
            command.name = args[0]
            self.add_command(command)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Every error ends in one clear line and an exit code."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            terminal.silence_stdout()
            raise typer.Exit(terminal.BROKEN_PIPE) from None
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            kind = type(error).__name__
            if kind == "NoArgsIsHelpError":  # a bare group, such as `prep trace`
                print(error.ctx.get_help())  # type: ignore[union-attr]
                raise typer.Exit(0) from None
            if kind == "MissingParameter":
                raise terminal.explain(_missing(error)) from None
            is_usage_error = hasattr(error, "format_message")  # typer prints it
            if is_usage_error and hasattr(error.__cause__, "errors"):  # in pydantic's words
                from prep_common.complaints import complain

                error.message = complain(error.__cause__.errors())  # type: ignore[union-attr]
            if is_usage_error or terminal.debug_wanted():
                raise
            raise terminal.explain(error) from None
        finally:
            remove_empty_folders()


def _missing(error: Any) -> terminal.Problem:
    """Say what the missing argument is, and show the first example of the command's help."""
    command = f"prep {error.ctx.command_path.partition(' ')[2]}"
    name = error.param.metavar or error.param.opts[0]
    words = (error.param.help or "").rstrip(".")
    example = (error.ctx.command.help or "").partition("Example")[2].partition("prep ")[2].partition("\n")[0]
    return terminal.Problem(
        f"{command} needs {name}" + (f": {words[:1].lower()}{words[1:]}" if words else ""),
        f"prep {example}" if example else f"{command} --help",
    )


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold cyan]prep quiz[/] or [bold cyan]prep demo[/]. "
    "Every command has examples: [bold cyan]prep generate --help[/]",
)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks (also: PREP_DEBUG=1).")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """A readable LLM inference engine, and a workbench around it."""
    if debug:
        os.environ["PREP_DEBUG"] = "1"
    if version:
        from app.cli.doctor import version_of

        print(f"prep {version_of('prep-workbench') or 'from the source tree'}")
        raise typer.Exit()
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def with_home(word: str) -> str:
    """Replace the `~` of `--ics=~/plan.ics`, which bash leaves as it is: else a folder named ~ would be made."""
    name, equals, value = word.partition("=")
    is_path = name.startswith("--") and value.startswith("~/")
    return f"{name}{equals}{os.path.expanduser(value)}" if is_path else word


def main() -> None:
    """Run the command of `sys.argv`, and end with its exit code."""
    terminal.prepare_streams()
    try:
        try:
            app(args=[with_home(word) for word in sys.argv[1:]], prog_name="prep")
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Rich and typer turn it into exit code 1
            sys.exit(terminal.BROKEN_PIPE)
        raise
    except OSError as error:  # of a help page or the last flush: `invoke` reports those of commands
        terminal.silence_stdout()
        if isinstance(error, BrokenPipeError):
            sys.exit(terminal.BROKEN_PIPE)
        sys.exit(terminal.explain(error).exit_code)


if __name__ == "__main__":
    main()
