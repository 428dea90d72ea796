"""`prep cards`: reference cards of engines, hardware, papers and releases; `cards_export.py` writes files."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from app.cli import terminal
from app.cli.cards_export import export
from app.cli.options import JsonOption, TopicOption, argument, option
from prep_common.text import counted
from prep_common.typed_value import value_text
from quizzes.cards.card_list import Cards, load_cards
from quizzes.topics import TOPICS, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from quizzes.cards.card import Card, EngineCard, HardwareCard, PaperCard
    from quizzes.cards.miniature import Reproduced

CardId = Annotated[str, argument("A card from: prep cards list; part of the id is enough.", metavar="ID")]


def load() -> Cards:
    """Load the cards. Broken entries are reported on stderr and left out."""
    cards = load_cards()
    for problem in cards.problems:
        terminal.note(f"[yellow]left out:[/] cards/bank/{terminal.literal(problem)}")
    return cards


def list_(
    kind: Annotated[str | None, option("engine, hardware, paper or release.")] = None,
    topic: TopicOption = None,
    json: JsonOption = False,
) -> None:
    """List the cards.

    \b
    Examples:
      prep cards list
      prep cards list --kind paper --topic speculation
    """
    from quizzes.cards.card import KINDS

    wanted_kind = resolve("kind of card", kind, KINDS) if kind else None
    wanted_topic = resolve("topic", topic, TOPICS) if topic else None
    chosen = [
        entry
        for entry in load()
        if wanted_kind in (None, entry.kind) and (wanted_topic is None or wanted_topic in entry.topics)
    ]
    if json:
        return terminal.print_json(
            [terminal.pick(entry, "id kind title date topics facts run") for entry in chosen]
        )
    console = terminal.out()
    for name, about in KINDS.items():
        entries = [entry for entry in chosen if entry.kind == name]
        if entries:
            console.print(f"\n[bold]{name}[/]  [dim]{about}[/]")
        for entry in entries:
            date = f"{entry.date}  " if entry.date else ""
            terminal.say(f"  [cyan]{entry.id.partition('.')[2]:<22}[/] {date}{escape(entry.title)}")
    console.print(
        f"\n{counted(len(chosen), 'card')}, {sum(bool(entry.run) for entry in chosen)} with a claim that runs"
    )
    if chosen:
        terminal.next_command(f"prep cards show {chosen[0].id}")
    else:
        terminal.next_command("prep cards list", "all of them")


def matrix(json: JsonOption = False) -> None:
    """Show which engine documents which feature.

    Example: prep cards matrix
    """
    from quizzes.cards.card import FEATURES, feature_label

    cards = load()
    engines: list[EngineCard] = [cards.card(entry.id) for entry in cards if entry.kind == "engine"]
    if json:
        return terminal.print_json(
            {card.id: {name: cell.has for name, cell in card.features.items()} for card in engines}
        )
    rows = [
        [
            feature_label(name),
            *(card.features[name].has if name in card.features else "" for card in engines),
        ]
        for name in FEATURES
    ]
    short = {"partly": "part", "": "-"}
    table = terminal.table("", *(card.short for card in engines))
    table.padding = (0, 1, 0, 0)
    for row in rows:
        table.add_row(row[0], *(short.get(cell, cell) for cell in row[1:]))
    terminal.out().print(table)
    for card in engines:
        dates = sorted({source.as_of or "" for source in card.sources.values()})
        terminal.say(f"{card.short:<6} {escape(card.title)}  [dim]read in {dates[-1]}[/]")
    terminal.say('\n[dim]"-" was not verified, which is not a no. Notes and sources: prep cards show ID[/]')
    terminal.next_command(f"prep cards show {engines[0].id}" if engines else "prep cards list")


def show(
    card_id: CardId,
    run: Annotated[bool, option("Run the paper's claim in miniature.", "--run")] = False,
    json: JsonOption = False,
) -> None:
    """Show a card: facts, dates, sources; with --run, check a paper's claim on this machine.

    \b
    Examples:
      prep cards show h100
      prep cards show paged_attention --run
      prep cards show engine.vllm --json
    """
    cards = load()
    card = one_card(cards, card_id)
    if run and card.kind != "paper":
        runnable = next(entry.id for entry in cards if entry.run)
        raise terminal.Problem(
            f"{card.id} has no claim that runs: --run needs the card of a paper",
            f"prep cards show {runnable} --run",
        )
    outcome = run_miniature(card) if run else None
    if json:
        terminal.print_json(as_json(card, outcome))
    else:
        print_card(card, outcome)
        suggest(card, outcome)
    if outcome is not None and not outcome.holds:
        raise typer.Exit(terminal.CHECKS_FAILED)


def as_json(card: Card, outcome: Reproduced | None = None) -> dict[str, Any]:
    """Return a card as plain values; hardware with its figures, a paper with the outcome of its run."""
    plain: dict[str, Any] = card.model_dump(mode="json", by_alias=True, exclude_none=True)
    if card.kind == "hardware":
        plain["figures"] = [asdict(row) for row in _figures(card)]  # type: ignore[arg-type]
    if outcome is not None:
        plain["outcome"] = asdict(outcome)
    return plain


def one_card(cards: Cards, name: str) -> Any:
    """Return the card with this id or name. Raises Problem if several have it, UnknownId if none."""
    matches = cards.find(name)
    if len(matches) > 1:
        raise terminal.Problem(
            f"{name!r} names {counted(len(matches), 'card')}: {', '.join(matches)}",
            f"prep cards show {matches[0]}",
        )
    return cards.card(matches[0] if matches else name)


def run_miniature(card: PaperCard) -> Reproduced:
    """Run the claim of a paper's card in a worker process."""
    from app.cli.run import told
    from quizzes.cards.miniature import reproduce
    from quizzes.experiments.runner import Runner

    with Runner() as runner, terminal.loading(card.miniature.run), told():
        return reproduce(card, lambda name, args: runner.run(name, args).result)


def print_card(card: Card, outcome: Reproduced | None = None) -> None:
    """Print a card in 80 columns: what it says, then the sources with their dates."""
    from app.cli.quiz import showing

    console = showing.console()
    console.print(f"\n[bold]{escape(card.title)}[/]  [dim]{card.id}[/]")
    bodies: dict[str, Callable[[Any], None]] = {
        "engine": _engine,
        "hardware": _hardware,
        "paper": _paper,
        "release": _release,
    }
    bodies[card.kind](card)
    for fact in card.facts:
        mark = f" [dim]\\[{fact.source}][/]"
        console.print(showing.bullet(fact.says, mark))
    if card.kind == "paper":
        _print_miniature(card, outcome)  # type: ignore[arg-type]
    _print_claims(card.claims)
    console.print("\n [bold cyan]sources[/]")
    for name, source in card.sources.items():
        terminal.say(f" [dim]\\[{name}][/] {escape(source_line(source))}")


def source_line(source: Any) -> str:
    """Return a source with version, date and address on one line."""
    parts = [source.ref, source.version and f"version {source.version}", source.as_of, source.url]
    return "; ".join(part for part in parts if part)


def _engine(card: EngineCard) -> None:
    from app.cli.quiz import showing
    from quizzes.cards.card import FEATURES, feature_label

    terminal.say(f" [dim]{escape(card.languages)}; {escape(card.licence)}[/]\n")
    table = terminal.table("feature", "", "as its documents say", left=("", "as its documents say"))
    for name, cell in card.features.items():
        table.add_row(feature_label(name), cell.has, f"{escape(cell.note)} [dim]\\[{cell.source}][/]".strip())
    showing.console().print(table)
    missing = [feature_label(name) for name in FEATURES if name not in card.features]
    if missing:
        showing.console().print(showing.note(f"not verified: {', '.join(missing)}"))


def _figures(card: HardwareCard) -> list[Any]:
    from quizzes.cards.hardware import figures

    return [figures(device) for device in card.devices]


def _hardware(card: HardwareCard) -> None:
    from app.cli.quiz import showing
    from quizzes.cards.hardware import CONTEXT, MODEL

    console = showing.console()
    rows = _figures(card)
    for row in rows:
        floor = "does not fit" if row.floor_ms is None else f"{row.floor_ms:.1f} ms"
        console.print(f"\n [cyan]{row.name}[/]  {row.memory_gib:.1f} GiB, {row.gb_per_s:,.0f} GB/s")
        table = terminal.table("type", "dense TFLOP/s", "ridge FLOP/B")
        for rate in row.rates:
            table.add_row(rate.dtype, f"{rate.teraflops:,.1f}", f"{rate.ridge:,.0f}")
        console.print(table)
        console.print(f"   reading all of its memory once   {row.read_all_ms:.0f} ms")
        console.print(f"   least decode step of {MODEL}   {floor}  [dim]16 bits, {CONTEXT:,} tokens[/]")
        console.print(f"   to its neighbours   {row.link}, {row.link_gb_per_s:,.0f} GB/s in one direction")
        terminal.say(f"   [dim]{escape(row.source)}[/]")
    console.print(
        showing.note(
            "Below the ridge memory is the limit. With 16-bit weights the 16-bit ridge is also the tokens per step "
            "from which the linear layers are limited by arithmetic."
        )
    )
    console.print()


def _paper(card: PaperCard) -> None:
    from app.cli.quiz import showing

    first = "" if str(card.year) in card.venue else f"first in {card.year}"
    where = [card.authors, card.venue, first, card.arxiv and f"arXiv {card.arxiv}"]
    terminal.say(f" [dim]{escape('; '.join(filter(None, where)))}[/]\n")
    showing.console().print(showing.prose(card.idea))
    showing.console().print()


def _print_miniature(card: PaperCard, outcome: Reproduced | None) -> None:
    from app.cli.quiz import showing

    console, miniature = showing.console(), card.miniature
    console.print("\n [bold cyan]one claim in miniature[/]")
    console.print(showing.prose(miniature.claim))
    settings = "".join(
        f" --set {quote(f'{name}={value_text(value)}')}" for name, value in miniature.args.items()
    )
    terminal.say(f" [dim]{miniature.run}{escape(settings)}[/]")
    if outcome is not None:
        console.print(f"\n {terminal.mark(outcome.holds)} {'holds' if outcome.holds else 'does not hold'}")
        console.print(showing.prose(outcome.shows))
    console.print(showing.prose(f"Left out: {miniature.leaves_out}"))


def _release(card: Any) -> None:
    terminal.say(f" [dim]vLLM {card.version}, {card.date}[/]\n")


def _print_claims(ids: list[str]) -> None:
    """Print what interview guides say about it, with the verdicts of dated facts."""
    if not ids:
        return
    from rich.padding import Padding

    from app.cli.claims.common import COLOUR
    from app.cli.quiz import showing
    from quizzes.claims.claim_list import load_claims

    console, claims = showing.console(), load_claims()
    console.print("\n [bold cyan]guides say[/]")
    for entry in (claims.entries[claim_id] for claim_id in ids if claim_id in claims):
        verdict = entry.fact or "a test decides"
        colour = COLOUR.get(verdict, "dim")
        console.print(showing.bullet(entry.claim, f" [{colour}]{verdict}[/] [dim]{entry.id}[/]"))
        if verdict == "refuted":
            console.print(Padding(showing.note(escape(claims.claim(entry.id).fact.says)), (0, 0, 0, 3)))


def suggest(card: Card, outcome: Reproduced | None = None) -> None:
    if card.kind == "paper" and outcome is None:
        terminal.next_command(f"prep cards show {card.id} --run", "check the claim here")
    elif card.questions:
        terminal.next_command(f"prep quiz --question {card.questions[0]}")
    else:
        terminal.next_command("prep cards list")


cards = terminal.command_app(
    list_,
    show,
    matrix,
    export,
    help="Read cards of engines, hardware, papers and releases: dated facts, and claims that run.",
    shows=("show", lambda word: str(one_card(load(), word).id)),
)
