"""`prep experiments`: list the experiments, and show the arguments and the result of one."""

from __future__ import annotations

from typing import Annotated, Any

from rich.markup import escape
from rich.padding import Padding

from app.cli import terminal
from app.cli.options import JsonOption, TopicOption, argument, option
from app.cli.run import as_list, plain, resolve_name, type_name
from prep_common.text import counted
from quizzes.experiments import registry
from quizzes.topics import TOPICS, resolve


def list_(
    topic: TopicOption = None,
    codes: Annotated[
        bool, option("By catalogue code (E01 to E66), as in reports and sources.", "--codes")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List all experiments with their titles.

    \b
    Examples:
      prep experiments list --topic memory
      prep experiments list --codes
    """
    wanted = resolve("topic", topic, TOPICS) if topic else None
    listed = [registry.get(name) for name in registry.names() if wanted in (None, name.split(".")[0])]
    if json:
        return terminal.print_json([_summary(experiment) for experiment in listed])
    if codes:
        _print_codes(listed)
        return
    console = terminal.out()
    last = ""
    for experiment in listed:
        group, _, short = experiment.name.partition(".")
        if group != last:
            console.print(f"\n[bold]{group}[/]  [dim]{TOPICS.get(group, '')}[/]")
        last = group
        mark = "" if experiment.determinism == "exact" else " [dim](measured)[/]"
        terminal.say(f"  [cyan]{short}[/]{mark}")
        console.print(Padding(experiment.title, (0, 0, 0, 6)), style="dim")
    console.print(
        f"\n{counted(len(listed), 'experiment')}. Those not marked as measured are exact: the same on every machine."
    )
    terminal.next_command(f"prep experiments show {listed[0].name}" if listed else "prep experiments list")


def _print_codes(listed: list[Any]) -> None:
    """One block per catalogue code: the experiments that realise it, with their titles."""
    console = terminal.out()
    for code in sorted({code for experiment in listed for code in experiment.catalogue}):
        console.print(f"[bold]{code}[/]")
        for experiment in listed:
            if code in experiment.catalogue:
                terminal.say(f"  [cyan]{experiment.name}[/]")
                console.print(Padding(experiment.title, (0, 0, 0, 6)), style="dim")
    terminal.next_command("prep experiments show NAME", "its arguments and result")


def show(
    name: Annotated[str, argument("A name or a code (E13) from: prep experiments list", metavar="NAME")],
    json: JsonOption = False,
) -> None:
    """Show what an experiment does, its arguments, its result and its file.

    Example: prep experiments show batching.static_vs_continuous
    """
    name = resolve_name(name)
    experiment = registry.get(name)
    if json:
        return terminal.print_json(_summary(experiment))
    console = terminal.out()
    console.print(f"[bold]{name}[/]  [dim]{', '.join(experiment.catalogue)} · {experiment.determinism}[/]\n")
    for paragraph in experiment.doc.split("\n\n"):
        console.print(_unwrapped(paragraph) + "\n", markup=False)
    console.print("[bold]arguments[/]")
    for parameter in experiment.parameters.values():
        kind = type_name(parameter.annotation)
        console.print(f"  [cyan]{parameter.name}[/]={plain(as_list(parameter.default))}  [dim]{kind}[/]")
    console.print(f"\n[bold]returns[/]  {escape(experiment.result_note)}")
    for field in experiment.result_fields:
        console.print(f"  [cyan]{field.name}[/]  [dim]{escape(field.unit)}[/]  {escape(field.meaning)}")
    terminal.say(
        f"\n[dim]{registry.source_file(name)}\nlimits: {experiment.seconds:g} s, {experiment.megabytes:,} MiB[/]"
    )
    terminal.next_command(f"prep run {name}")


def _unwrapped(paragraph: str) -> str:
    """One line, so that the terminal wraps it; lists keep their lines."""
    lines = paragraph.splitlines()
    is_list = any(line.startswith(("    ", "- ")) for line in lines)
    return paragraph if is_list else " ".join(line.strip() for line in lines)


def _summary(experiment: Any) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "title": experiment.title,
        "catalogue": list(experiment.catalogue),
        "determinism": experiment.determinism,
        "parameters": {
            parameter.name: {"type": type_name(parameter.annotation), "default": as_list(parameter.default)}
            for parameter in experiment.parameters.values()
        },
        "result": experiment.result_units,
    }


experiments = terminal.command_app(
    list_,
    show,
    help="List and show the experiments that decide questions and claims.",
    shows=("show", lambda word: registry.get(resolve_name(word)).name),
)
