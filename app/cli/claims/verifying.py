"""`prep claims verify`: run the test of every claim and print a table of verdicts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.claims import common
from app.cli.settings import JsonOption

if TYPE_CHECKING:
    from quizzes.claims.claim_list import Claims, Entry
    from quizzes.claims.court import Ruling, Run


def verify(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out tests that measure time (default).")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Also run tests that measure time.")] = False,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Also write the verdicts to a Markdown page.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the test of every claim and print the verdicts. Exit code 1 if a test is broken.

    \b
    Examples:
      prep claims verify
      prep claims verify --all --json
      prep claims verify --all --page found.md
    """
    from quizzes.claims import verdict_cache
    from quizzes.topics import TOPICS, resolve

    if quick and all_:
        raise terminal.Problem("--quick and --all exclude each other", next_step="use one of them")
    claims = common.load()
    wanted = resolve("topic", topic, TOPICS) if topic else None
    entries = [entry for entry in claims if entry.run and wanted in (None, entry.topic)]
    left_out = [] if all_ else [entry for entry in entries if _measures(entry)]
    chosen = [entry for entry in entries if entry not in left_out]
    began = time.monotonic()
    rulings, broken = _judge_all(claims, chosen)
    verdict_cache.remember(rulings)
    broken += [f"claims/bank/{problem}" for problem in claims.problems]
    if page is not None:
        from quizzes.claims.report import markdown

        options = f"{' --all' if all_ else ''}{f' --topic {topic}' if topic else ''}"
        command = f"prep claims verify{options} --page {page.name}"
        page.write_text(markdown([(claims.claim(r.id), r) for r in rulings], command), encoding="utf-8")
    if json:
        terminal.print_json(
            {
                "rulings": [ruling.to_json() for ruling in rulings],
                "broken": broken,
                "left_out": [e.id for e in left_out],
            }
        )
    else:
        _report(
            rulings,
            {entry.id: entry.kind for entry in chosen},
            broken,
            len(left_out),
            time.monotonic() - began,
        )
    if broken:
        raise typer.Exit(terminal.CHECKS_FAILED)


def _measures(entry: Entry) -> bool:
    from quizzes.experiments.registry import UnknownExperiment, get

    try:
        return get(entry.run).determinism == "statistical"
    except UnknownExperiment:
        return False  # reported as a broken test


def _judge_all(claims: Claims, entries: list[Entry]) -> tuple[list[Ruling], list[str]]:
    """Return rulings in the order of the claims, and broken tests. Claims of one experiment run in a row."""
    from quizzes.claims.court import BrokenTest, check_flip, judge
    from quizzes.experiments.runner import RunFailed

    rulings: dict[str, Ruling] = {}
    broken: dict[str, str] = {}
    with common.court_runs() as run, terminal.progress(len(entries), "claims") as advance:
        run = _once(run)
        for entry in sorted(entries, key=lambda entry: entry.run):
            advance(entry.id)
            try:
                claim = claims.claim(entry.id)
                rulings[entry.id] = judge(claim, run)
                check_flip(claim, run)
            except BrokenTest as error:
                broken[entry.id] = str(error)
            except RunFailed as error:
                broken[entry.id] = f"{entry.id}: {error}"
    order = [entry.id for entry in entries]
    return [rulings[name] for name in order if name in rulings], [
        broken[name] for name in order if name in broken
    ]


def _once(run: Run) -> Run:
    """Run each experiment once per arguments, even if it measures and is not cached."""
    import json

    known: dict[str, Any] = {}

    def ask(name: str, args: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps([name, args], sort_keys=True)
        if key not in known:
            known[key] = run(name, args)
        return dict(known[key])

    return ask


def _report(
    rulings: list[Ruling], kinds: dict[str, str], broken: list[str], left_out: int, seconds: float
) -> None:
    from rich.markup import escape

    from quizzes.claims.report import VERDICTS, counts, table

    console = terminal.out()
    rows = table(rulings, kinds)
    used = [at for at, name in enumerate(VERDICTS, 1) if rows[-1][at]]
    grid = terminal.table("kind", *(VERDICTS[at - 1] for at in used), "all")
    for row in rows:
        grid.add_row(row[0], *(row[at] for at in used), row[-1])
    console.print(grid)
    for ruling in rulings:
        if ruling.verdict in ("inconclusive", "skipped"):
            console.print(f"  {ruling.id}  {ruling.verdict}: {escape(ruling.reason)}", soft_wrap=True)
    for line in broken:
        console.print(f"  {terminal.mark(False)} broken: {escape(line)}", soft_wrap=True)
    console.print(f"{counts(rulings)}; {len(broken)} broken; {seconds:.0f} s")
    if left_out:
        console.print(f"[dim]{left_out} tests that measure time were left out; --all runs them[/]")
    terminal.next_command("prep claims list --verdict refuted", "lists what the guides get wrong")
