"""`prep lab race` and `prep lab submit-trace`: the learner's part against ours, and on a recorded workload."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import terminal
from app.cli.exercises import check_source, is_recorded
from app.cli.options import JsonOption, argument, option
from lessons.course import progress, workspace
from lessons.course.lesson_files import Lab, find_lab, labs, solution
from prep_common.text import counted

if TYPE_CHECKING:
    from lessons.labs.racing import Race

BAR = 32
"""Characters of the longest bar of a chart."""


def race(
    lab: Annotated[
        str | None, argument("Name of a lab; the next one with a race without.", metavar="[LAB]")
    ] = None,
    seed: Annotated[int, option("Draws the last workload.", min=0)] = 0,
    best: Annotated[bool, option("Run nothing: list your races so far, the best first.", "--best")] = False,
    open_: Annotated[bool, option("Open the first decision that differs in the debugger.", "--open")] = False,
    json: JsonOption = False,
) -> None:
    """Race your part against ours, vLLM's rule and a naive one. Your file must pass its checks.

    Three fixed workloads, and one that the seed draws. In races of policies, time is virtual: the same seed gives the
    same table on every machine.

    \b
    Examples:
      prep lab race router-affinity
      prep lab race router-affinity --seed 5 --open
      prep lab race router-affinity --best
    """
    chosen = _with_race(lab)
    if best:
        return _show_races(chosen, json)
    source = workspace.lab_source(chosen)
    result = _run(chosen, source, seed)
    is_saved = is_recorded(
        lambda: progress.record_race(chosen.number, seed, result.ratio, source, result.more_is_better)
    )
    if json:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        facts = {"lab": chosen.number, "seed": seed, "ratio": result.ratio, "differs": result.differs}
        traces = None
        if result.traces is not None:
            mine, right, step = result.traces
            traces = {"yours": str(mine), "ours": str(right), "step": step}
        terminal.print_json({**facts, "tokens": result.tokens, "traces": traces, "rows": rows})
    else:
        _show(chosen, result)
    if open_ and result.traces is not None and not json:
        _open(result.traces[0], result.traces[2])
    if not is_saved:
        raise typer.Exit(terminal.ENVIRONMENT)


def _with_race(name: str | None) -> Lab:
    """Return the lab of this name, or the first unsolved one with a race. Raises Problem if it has none."""
    if name is None:
        done = progress.passed()
        with_race = [lab for lab in labs() if lab.has_race]
        return next((lab for lab in with_race if lab.number not in done), with_race[-1])
    chosen = find_lab(name)
    if not chosen.has_race:
        races = ", ".join(lab.number for lab in labs() if lab.has_race)
        raise terminal.Problem(f"{chosen.number} has no race", f"labs with one: {races}")
    return chosen


def _run(lab: Lab, source: str, seed: int) -> Race:
    """Check the file, then race it. Raises Problem for a file that does not pass, or fails in the race."""
    from lessons.course.checking import Failed
    from prep_common.sandbox import GuestError, GuestStopped

    _must_pass(lab, source)
    try:
        with terminal.status("racing, up to half a minute"):
            result: Race = import_module(f"lessons.{lab.name}.race").race(source, solution(lab.number), seed)
            return result
    except GuestStopped as stopped:
        raise terminal.Problem(stopped.told, f"prep lab check {lab.number}") from None
    except (GuestError, RuntimeError) as error:
        raise terminal.Problem(f"your code: {error}", f"prep lab check {lab.number}") from None
    except Failed as failed:
        raise terminal.Problem(f"your code: {failed.why}", f"prep lab check {lab.number}") from None


def _must_pass(lab: Lab, source: str) -> None:
    if not check_source(lab.exercise, source, keep=False).ok:
        raise terminal.Problem(
            f"your {lab.number} does not pass its checks yet",
            f"prep lab check {lab.number}",
            code=terminal.CHECKS_FAILED,
        )


def _show(lab: Lab, result: Race) -> None:
    """Print the table, the chart, the ratio, and the first decision that differs."""
    left = result.columns[:2]
    terminal.show(f"Race: {lab.number}", terminal.table(*result.columns, left=left, rows=result.rows))
    terminal.say(f"[bold]{terminal.literal(result.columns[result.chart])}[/]")
    sign = "█" if terminal.unicode_ok() else "#"
    width = max(len(name) for _, name, *_ in result.rows)
    for workload, figures in result.charts():
        terminal.say(f" {terminal.literal(workload)}")
        most = max(value for _, value, _ in figures) or 1.0
        for name, value, text in figures:
            bar = sign * max(1, round(BAR * value / most))
            colour = "bold cyan" if name == "yours" else "dim"
            terminal.say(f"  {terminal.literal(name):<{width}}  [{colour}]{bar}[/] {terminal.literal(text)}")
    terminal.say(f"{result.ratio:.2f}: {terminal.literal(result.says)}")
    if result.tokens:
        terminal.say(f"tokens: {terminal.literal(result.tokens)}")
    if result.differs:
        terminal.say(f"first decision that differs: {terminal.literal(result.differs)}")
    if result.traces is not None:
        mine, right, step = result.traces
        terminal.say(f" look at it: prep app --trace {terminal.literal(mine)} --step {step}", whole=True)
        terminal.say(
            f" compare: prep trace diff {terminal.literal(mine)} {terminal.literal(right)}", whole=True
        )
    terminal.next_command(f"prep lab follow-ups {lab.number}", "it explains the order of the contestants")


def submit_trace(
    lab: Annotated[str, argument("Name of a lab: scheduler-fcfs.", metavar="LAB")],
    file: Annotated[Path, argument("A trace of an engine's run (*.itrace).", metavar="FILE")],
    open_: Annotated[bool, option("Open the first decision that differs in the debugger.", "--open")] = False,
    json: JsonOption = False,
) -> None:
    """Serve the requests of a recorded run with your part behind the engine, and compare all decisions.

    The trace gives the requests, their steps of arrival and the engine's settings. Your file must pass its checks. Labs
    of a part that the engine's scheduler uses take traces, such as scheduler-fcfs.

    \b
    Examples:
      prep trace record -o run.itrace generate shop --chat -p "What do you recommend?"
      prep lab submit-trace scheduler-fcfs run.itrace
    """
    from lessons.labs.submission import has_seam, submit
    from prep_common.sandbox import GuestError, GuestStopped

    chosen = find_lab(lab)
    if not has_seam(chosen):
        names = ", ".join(other.number for other in labs() if has_seam(other))
        raise terminal.Problem(f"{chosen.number} takes no trace", f"labs that do: {names}")
    source = workspace.lab_source(chosen)
    _must_pass(chosen, source)
    try:
        with terminal.status("serving the recorded requests twice"):
            result = submit(chosen, source, file)
    except GuestStopped as stopped:
        raise terminal.Problem(stopped.told, f"prep lab check {chosen.number}") from None
    except GuestError as error:
        raise terminal.Problem(f"your code: {error}", f"prep lab check {chosen.number}") from None
    if json:
        terminal.print_json({**terminal.pick(result, "num_requests num_steps differs step"), "ok": result.ok})
    else:
        asked = counted(result.num_requests, "request")
        terminal.say(f"{asked}, {counted(result.num_steps, 'step')} with the engine's own part")
        if result.ok:
            terminal.say(f" {terminal.mark(True)} your part makes the same decision in each of them")
        else:
            terminal.say(f" {terminal.mark(False)} {terminal.literal(result.differs)}")
            terminal.say(
                f" compare: prep trace diff {terminal.literal(result.yours)} {terminal.literal(result.ours)}",
                whole=True,
            )
        terminal.next_command(f"prep app --trace {terminal.shown(result.yours)} --step {result.step}")
    if open_:
        _open(result.yours, result.step)
    if not result.ok:
        raise terminal.Problem("a decision differs", code=terminal.CHECKS_FAILED)


submit_trace.__name__ = "submit-trace"


def _open(path: Path, step: int) -> None:
    from app.cli.app import app

    app(trace=path, step=step)


def _show_races(lab: Lab, json: bool) -> None:
    """Print the learner's races of a lab, the best first."""
    races = sorted(
        progress.events(lab.number, "race"),
        key=lambda event: (-event.answer if event.detail.get("more") else event.answer, event.at),
    )
    facts = [
        {
            "ratio": race.answer,
            "seed": race.detail["seed"],
            "file": race.detail["digest"],
            "at": race.at.isoformat(),
        }
        for race in races
    ]
    if json:
        return terminal.print_json({"lab": lab.number, "races": facts})
    if not races:
        raise terminal.Problem(f"no race of {lab.number} so far", f"prep lab race {lab.number}")
    rows = [
        (f"{race.answer:.2f}", race.detail["seed"], race.detail["digest"][:8], f"{race.at:%Y-%m-%d %H:%M}")
        for race in races
    ]
    terminal.show(
        f"Your races: {lab.number}", terminal.table("ratio", "seed", "file", "when (UTC)", rows=rows)
    )
    terminal.next_command(f"prep lab race {lab.number} --seed {races[0].detail['seed'] + 1}")
