"""`prep run`: run one experiment with chosen arguments."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

from app.cli import terminal
from app.cli.options import JsonOption, SetOption, argument, make_folder_of, option, parse_settings
from prep_common.paths import write_atomically
from prep_common.text import counted, plain_value
from prep_common.typed_value import value_text
from quizzes.experiments import Result, registry
from quizzes.experiments.registry import Experiment, Inconclusive, NeedsHardware, get

if TYPE_CHECKING:
    from quizzes.experiments.runner import Outcome


def resolve_name(given: str) -> str:
    """Return the name of an experiment; a catalogue code (E13) that names one experiment becomes its name.

    Raises Problem if the code names none or several.
    """
    if not re.fullmatch(r"[Ee]\d+", given):
        return given
    code = given.upper()
    names = [name for name in registry.names() if code in registry.get(name).catalogue]
    if len(names) == 1:
        return names[0]
    raise terminal.Problem(
        f"{code} names {counted(len(names), 'experiment')}: {', '.join(names)}"
        if names
        else f"no experiment has code {code}",
        f"prep experiments show {names[0]}" if names else "prep experiments list --codes",
    )


def as_list(value: Any) -> Any:
    return [as_list(item) for item in value] if isinstance(value, tuple) else value


def type_name(annotation: Any) -> str:
    """int from 1 to 64; list of int; fcfs or priority."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(annotation).json_schema()
    return _describe(schema)


def _describe(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_describe(part) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_describe(schema.get('items', {}))}"
    bounds = [f"from {schema['minimum']}"] if "minimum" in schema else []
    bounds += [f"above {schema['exclusiveMinimum']}"] if "exclusiveMinimum" in schema else []
    bounds += [f"to {schema['maximum']}"] if "maximum" in schema else []
    return " ".join([str(schema.get("const", schema.get("type", "value"))), *bounds])


class WithArguments(TyperCommand):
    """`prep run`: its help page lists the arguments of the experiment that is named before --help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["experiment"] = next((word for word in args if not word.startswith("-")), None)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        name = ctx.meta.get("experiment")
        if name is None:
            return
        experiment = get(resolve_name(name))
        rows = [
            (f"--set {key}={value_text(as_list(parameter.default))}", type_name(parameter.annotation))
            for key, parameter in experiment.parameters.items()
        ]
        with formatter.section(f"Arguments of {experiment.name}"):
            formatter.write_dl(rows or [("none", "")])


def run(
    name: Annotated[
        str, argument("A name or a code (E13) from: prep experiments list", metavar="EXPERIMENT")
    ],
    settings: SetOption = None,
    seed: Annotated[int, option("Seed for experiments that draw at random.")] = 0,
    trace: Annotated[Path | None, option("Record every step; read it with prep trace info FILE.")] = None,
    plot: Annotated[Path | None, option("Draw the result: .svg, .png, or .json (Vega-Lite).")] = None,
    fresh: Annotated[bool, option("Ignore a cached result.", "--fresh")] = False,
    json: JsonOption = False,
) -> None:
    """Run an experiment on the engine and print its result. With a name, --help lists its arguments too.

    \b
    Examples:
      prep run batching.static_vs_continuous
      prep run batching.static_vs_continuous --set slots=8 --set lens=57,21,21,44
      prep run batching.static_vs_continuous --trace run.itrace --json
    """
    from quizzes.experiments.runner import Runner

    name = resolve_name(name)
    experiment = get(name)
    args = parse_settings(settings)
    experiment.check(args)
    if trace is not None and trace.exists():
        raise terminal.Problem(f"{trace} exists", "give --trace another name, or remove it first")
    make_folder_of(trace, plot)
    if plot is not None:
        check_plot(experiment, plot)
    with Runner() as runner, terminal.loading(name), told():
        outcome = runner.run(name, args, seed=seed, trace=trace, fresh=fresh)
    if plot is not None:
        draw(experiment, outcome.result, plot)
    if json:
        outcome_fields = terminal.pick(outcome, "args result determinism")
        run_time = {"seconds": round(outcome.seconds, 3), "cached": outcome.cached}
        return terminal.print_json({"experiment": name, **outcome_fields, **run_time})
    show(experiment, outcome)
    if trace is not None and not trace.exists():
        terminal.tell_error(f"{name} does not step an engine, so it has no trace")
        raise typer.Exit(terminal.CHECKS_FAILED)
    if trace is not None:
        terminal.next_command(f"prep trace info {trace}", "shows every step")
    else:
        first = next(iter(experiment.parameters), None)
        command = f"prep run {name} --set {first}=..." if first else "prep experiments list"
        terminal.next_command(command, "change one argument")


run.kind = WithArguments  # type: ignore[attr-defined]


@contextmanager
def told() -> Iterator[None]:
    """End an experiment that cannot run or decide in one line and an exit code."""
    from quizzes.experiments.runner import OverMemory, OverTime, RunFailed

    try:
        yield
    except Inconclusive as reason:
        raise terminal.Problem(
            f"inconclusive: {reason}", "close other programs and run again", code=terminal.INCONCLUSIVE
        ) from None
    except NeedsHardware as reason:
        raise terminal.Problem(f"unavailable on this machine: {reason}", code=terminal.ENVIRONMENT) from None
    except (OverTime, OverMemory) as reason:
        raise terminal.Problem(
            str(reason), "use smaller arguments: --set name=value", code=terminal.CHECKS_FAILED
        ) from None
    except RunFailed as reason:
        if terminal.debug_wanted():
            terminal.err().print(reason.details, markup=False)
        raise terminal.Problem(
            str(reason), "PREP_DEBUG=1 shows its traceback", code=terminal.CHECKS_FAILED
        ) from None


def show(experiment: Experiment, outcome: Outcome) -> None:
    """Print the arguments, then each value of the result with its unit."""
    console = terminal.out()
    console.print(f"[bold]{experiment.title}[/]")
    console.print(f"[dim]{', '.join(f'{k}={plain(v)}' for k, v in outcome.args.items())}[/]\n")
    show_figures(console, outcome.result, experiment.result_units)
    how = "from the cache" if outcome.cached else f"{outcome.seconds:.1f} s"
    console.print(f"\n[dim]{outcome.determinism}, {how}[/]")


def show_figures(console: Console, result: dict[str, Any], units: dict[str, str]) -> None:
    """Print an experiment's result, one line per value."""
    width = max(map(len, result), default=0)
    for name, value in result.items():
        console.print(f"  {name:<{width}}  [bold]{plain(value)}[/] [dim]{units.get(name, '')}[/]")


def plain(value: Any) -> str:
    """Return a value for reading, as Rich markup."""
    return escape(plain_value(value))


def check_plot(experiment: Experiment, path: Path) -> None:
    """Raise Problem if the experiment has no chart, or the file's kind cannot be drawn; called before it runs."""
    if experiment.chart is None:
        raise terminal.Problem(f"{experiment.name} has no chart", "prep run ... --json prints the values")
    if path.suffix not in (".svg", ".png", ".json"):
        raise terminal.Problem(f"--plot writes .svg, .png or .json, not {path.name}")
    if path.suffix != ".json" and find_spec("vl_convert") is None:
        raise terminal.Problem(
            "drawing needs vl-convert",
            "pip install -e '.[plot]', or --plot FILE.json",
            code=terminal.ENVIRONMENT,
        )


def draw(experiment: Experiment, result: dict[str, Any], path: Path) -> None:
    """Write the experiment's chart; `check_plot` says what it needs."""
    assert experiment.chart is not None
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        **experiment.chart(Result(**result)),
    }
    if path.suffix == ".json":
        return write_atomically(path, json_module.dumps(spec, indent=1))
    import vl_convert

    if path.suffix == ".svg":
        return write_atomically(path, vl_convert.vegalite_to_svg(spec))
    path.write_bytes(vl_convert.vegalite_to_png(spec, scale=2))
