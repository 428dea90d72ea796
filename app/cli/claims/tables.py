"""`prep claims list`, `show` and `verify`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from app.cli import terminal
from app.cli.claims import common
from app.cli.options import JsonOption, TopicOption, option
from quizzes.claims.claim_list import Claims, Entry
from quizzes.experiments.registry import UnknownExperiment, get
from quizzes.topics import TOPICS, resolve

if TYPE_CHECKING:
    from quizzes.claims.court import Ruling, Run


KINDS = ("derivable", "simulate", "measure-cpu", "measure-gpu", "external-fact", "judgement")


def list_(
    verdict: Annotated[
        str | None, option("confirmed, refuted, depends, outdated, inconclusive, skipped or unknown.")
    ] = None,
    topic: TopicOption = None,
    kind: Annotated[str | None, option(f"One of: {', '.join(KINDS)}.")] = None,
    json: JsonOption = False,
) -> None:
    """List all claims with the verdicts computed on this machine.

    \b
    Examples:
      prep claims list --topic memory
      prep claims list --verdict refuted
    """
    from quizzes.claims import verdict_cache

    claims = common.load()
    wanted_topic = resolve("topic", topic, TOPICS) if topic else None
    wanted_kind = _known("--kind", kind, KINDS)
    wanted_verdict = _known("--verdict", verdict, (*common.COLOUR, "unknown"))
    rulings = verdict_cache.known()
    rows = [
        (entry, verdict_of)
        for entry in claims
        if wanted_topic in (None, entry.topic) and wanted_kind in (None, entry.kind)
        if wanted_verdict in (None, verdict_of := _verdict(entry, rulings))
    ]
    if json:
        return terminal.print_json([_summary(entry, said, rulings) for entry, said in rows])
    _print(rows)
    open_ones = sum(bool(entry.run) and entry.id not in rulings for entry in claims)
    console = terminal.out()
    console.print(f"\n{len(rows)} of {len(claims)} claims; {open_ones} tests have not run on this machine")
    if open_ones and wanted_verdict not in (None, "unknown"):
        how = "prep claims run ID, or prep claims verify --quick"
        console.print(f"A claim with a test has a verdict only after its test has run here: {how}")
    if open_ones:
        terminal.next_command("prep claims verify", "runs every test")
    elif rows:
        terminal.next_command(f"prep claims vote {rows[0][0].id}", "vote before you read the verdict")


def _known(option: str, value: str | None, known: tuple[str, ...]) -> str | None:
    if value is None or value in known:
        return value
    raise terminal.Problem(f"{option} {value!r} is unknown", f"use one of: {', '.join(known)}")


def _verdict(entry: Entry, rulings: dict[str, Any]) -> str:
    if entry.run:
        return str(rulings[entry.id]["verdict"]) if entry.id in rulings else "unknown"
    return entry.fact or "unknown"


def _print(rows: list[tuple[Entry, str]]) -> None:
    """Print one line per claim: cut at the width of a terminal, whole in a pipe."""
    console = terminal.out()
    width = console.width
    for entry, verdict in rows:
        known = verdict if verdict != "unknown" else "discussion" if not entry.run else "-"
        colour = common.COLOUR.get(verdict, "dim")
        room = max(20, width - 37)
        text = entry.claim if len(entry.claim) <= room else f"{entry.claim[: room - 3]}..."
        terminal.say(f"{entry.id:<7}[{colour}]{known:<14}[/][dim]{entry.kind:<15}[/]{escape(text)}")


def _summary(entry: Entry, verdict: str, rulings: dict[str, Any]) -> dict[str, Any]:
    ruling = rulings.get(entry.id) or {}
    return {
        **terminal.pick(entry, "id topic where claim kind"),
        "experiment": entry.run or None,
        "verdict": None if verdict == "unknown" else verdict,
        "figure": ruling.get("figure"),
        "wording": ruling.get("wording"),
    }


def show(claim_id: common.ClaimId, json: JsonOption = False) -> None:
    """Show a claim and its test, without the verdict.

    Example: prep claims show S0-13
    """
    claim = common.load().claim(claim_id)
    if json:
        return terminal.print_json(claim.model_dump(mode="json", by_alias=True, exclude_none=True))
    common.heading(claim)
    if claim.test is not None:
        common.print_test(claim)
    if claim.fact is not None:
        terminal.out().print(f"fact: {common.verdict_word(claim.fact.verdict)}")
        common.print_fact(claim)
    if claim.discussion is not None:
        common.print_discussion(claim)
    terminal.next_command(f"prep claims vote {claim.id}" if claim.test else "prep claims list")


def verify(
    quick: Annotated[bool, option("Leave out tests that measure time (default).", "--quick")] = False,
    all_: Annotated[bool, option("Also run tests that measure time.", "--all")] = False,
    topic: TopicOption = None,
    page: Annotated[Path | None, option("Also write the verdicts to a Markdown page.")] = None,
    table: Annotated[
        Path | None, option("Also write the exhibits, a line per case, to compare versions.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the test of every claim and print the verdicts. Exit code 1 if a test is broken.

    \b
    Examples:
      prep claims verify
      prep claims verify --all --json
      prep claims verify --all --page found.md --table exhibits.tsv
    """
    from quizzes.claims import verdict_cache

    if quick and all_:
        raise terminal.Problem("--quick and --all exclude each other", "use one of them")
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
    if table is not None:
        from quizzes.claims.report import exhibits

        table.write_text(exhibits(rulings), encoding="utf-8")
    seconds = time.monotonic() - began
    if json:
        shown = [ruling.to_json() for ruling in rulings]
        terminal.print_json({"rulings": shown, "broken": broken, "left_out": [e.id for e in left_out]})
    else:
        _report(rulings, {entry.id: entry.kind for entry in chosen}, broken, len(left_out), seconds)
    if broken:
        raise typer.Exit(terminal.CHECKS_FAILED)


def _measures(entry: Entry) -> bool:
    try:
        return get(entry.run).determinism == "statistical"
    except UnknownExperiment:
        return False  # reported as a broken test


def _judge_all(claims: Claims, entries: list[Entry]) -> tuple[list[Ruling], list[str]]:
    """Return rulings in the order of the claims, and broken tests. Claims of one experiment run in a row."""
    from quizzes.claims.court import BrokenTest, check_flip, judge
    from quizzes.experiments.runner import RunFailed, Runner

    rulings: dict[str, Ruling] = {}
    broken: dict[str, str] = {}

    with Runner() as runner, terminal.progress(len(entries), "claims") as advance:
        run = _once(lambda name, args: runner.run(name, args).result)
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

    def in_order(by_id: dict[str, Any]) -> list[Any]:
        return [by_id[entry.id] for entry in entries if entry.id in by_id]

    return in_order(rulings), in_order(broken)


def _once(run: Run) -> Run:
    """Run each experiment once per arguments, even if it measures and is not cached."""
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
            terminal.say(f"  {ruling.id}  {ruling.verdict}: {escape(ruling.reason)}")
    for line in broken:
        terminal.say(f"  {terminal.mark(False)} broken: {escape(line)}")
    console.print(f"{counts(rulings)}; {len(broken)} broken; {seconds:.0f} s")
    if left_out:
        console.print(f"[dim]{left_out} tests that measure time were left out; --all runs them[/]")
    terminal.next_command("prep claims list --verdict refuted", "lists what the guides get wrong")
