"""`prep claims list` and `prep claims show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal
from app.cli.claims import common
from app.cli.settings import JsonOption

if TYPE_CHECKING:
    from quizzes.claims.claim_list import Entry

KINDS = ("derivable", "simulate", "measure-cpu", "measure-gpu", "external-fact", "judgement")


def list_(
    verdict: Annotated[
        str | None,
        typer.Option("--verdict", help="confirmed, refuted, depends, inconclusive, skipped or unknown."),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help=f"One of: {', '.join(KINDS)}.")] = None,
    json: JsonOption = False,
) -> None:
    """List all claims with the verdicts computed on this machine.

    \b
    Examples:
      prep claims list --topic memory
      prep claims list --verdict refuted
    """
    from quizzes.claims import verdict_cache
    from quizzes.topics import TOPICS, resolve

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
        terminal.print_json([_summary(entry, said, rulings) for entry, said in rows])
        return
    _print(rows)
    open_ones = sum(bool(entry.run) and entry.id not in rulings for entry in claims)
    console = terminal.out()
    console.print(f"\n{len(rows)} of {len(claims)} claims; {open_ones} tests have not run on this machine")
    if open_ones and wanted_verdict not in (None, "unknown"):
        console.print(
            "A claim with a test has a verdict only after its test has run here: "
            "prep claims run ID, or prep claims verify --quick"
        )
    if open_ones:
        terminal.next_command("prep claims verify", "runs every test")
    elif rows:
        terminal.next_command(f"prep claims vote {rows[0][0].id}", "vote before you read the verdict")


def _known(option: str, value: str | None, known: tuple[str, ...]) -> str | None:
    if value is None or value in known:
        return value
    raise terminal.Problem(f"{option} {value!r} is unknown", next_step=f"use one of: {', '.join(known)}")


def _verdict(entry: Entry, rulings: dict[str, Any]) -> str:
    if entry.run:
        return str(rulings[entry.id]["verdict"]) if entry.id in rulings else "unknown"
    return entry.fact or "unknown"


def _print(rows: list[tuple[Entry, str]]) -> None:
    """Print one line per claim: cut at the width of a terminal, whole in a pipe."""
    from rich.markup import escape

    console = terminal.out()
    width = console.width if console.is_terminal else 10_000
    for entry, verdict in rows:
        known = verdict if verdict != "unknown" else "discussion" if not entry.run else "-"
        colour = common.COLOUR.get(verdict, "dim")
        room = max(20, width - 37)
        text = entry.claim if len(entry.claim) <= room else f"{entry.claim[: room - 3]}..."
        console.print(
            f"{entry.id:<7}[{colour}]{known:<14}[/][dim]{entry.kind:<15}[/]{escape(text)}", soft_wrap=True
        )


def _summary(entry: Entry, verdict: str, rulings: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": entry.id,
        "topic": entry.topic,
        "where": entry.where,
        "claim": entry.claim,
        "kind": entry.kind,
        "experiment": entry.run or None,
        "verdict": None if verdict == "unknown" else verdict,
        "figure": (rulings.get(entry.id) or {}).get("figure"),
        "wording": (rulings.get(entry.id) or {}).get("wording"),
    }


def show(claim_id: common.ClaimId, json: JsonOption = False) -> None:
    """Show a claim and its test, without the verdict.

    Example: prep claims show S0-13
    """
    claim = common.load().claim(claim_id)
    if json:
        terminal.print_json(claim.model_dump(mode="json", by_alias=True, exclude_none=True))
        return
    common.heading(claim)
    if claim.test is not None:
        common.print_test(claim)
    if claim.fact is not None:
        terminal.out().print(f"fact: {common.verdict_word(claim.fact.verdict)}")
        common.print_fact(claim)
    if claim.discussion is not None:
        common.print_discussion(claim)
    terminal.next_command(f"prep claims vote {claim.id}" if claim.test else "prep claims list")
