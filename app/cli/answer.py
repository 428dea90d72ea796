"""`prep answer`: interview answers, by question or by number."""

from __future__ import annotations

import re
from typing import Annotated, Any

from rich.markup import escape

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from app.cli.quiz.start import open_bank
from quizzes.question_bank import Bank, codes

_CODE = re.compile(r"([QXY])0*([0-9]+)", re.IGNORECASE)
"""A numbered question or a contradiction."""


def answer(
    which: Annotated[
        str, argument("A question's id, a code of --list (Q021, X5), or the name of a card.", metavar="ID")
    ] = "",
    list_: Annotated[bool, option("List the codes: Q001 to Q150, X1 to X30, Y1 to Y24.", "--list")] = False,
    seed: Annotated[int, option("For the figures in it.")] = 0,
    json: JsonOption = False,
) -> None:
    """Show an interview answer: what they want to know, 30 seconds, 2 minutes, deeper, follow-ups, mistakes, rubric.

    For an engine, a device, a paper or a release of vLLM it shows the card: dated facts with sources.

    \b
    Examples:
      prep answer --list
      prep answer Q021
      prep answer memory.paged_attention
      prep answer h100
    """
    from app.cli.quiz import showing
    from quizzes.instance import draw

    which = _as_listed(which)
    bank = open_bank()
    if list_ or not which:
        return _list(bank, json)
    if which not in bank and not _is_code(which) and _show_cards(which, json):
        return
    ids = _find(bank, which)
    shown: list[dict[str, Any]] = []
    for question_id in ids:
        question = bank.question(question_id)
        instance = draw(question, seed)
        view = question.interview
        if view is None:
            continue
        asks = [instance.render(f.ask) for f in question.followups if f.experiment is None]
        shown.append({"id": question_id, "prompt": instance.prompt, **view.model_dump(), "followups": asks})
        if json:
            continue
        if question_id != which:
            listed = codes()[which]
            if listed.casefold() != question.title.casefold():
                heading = f"{which} {escape(listed)} Answered by {question_id}."
                terminal.out().print(f"\n[dim]{heading}[/]")
        showing.console().print(f"\n[bold]{question_id}[/]")
        showing.body(instance)
        showing.interview(question.title, view, instance.render)
        if asks:
            showing.console().print("\n [bold cyan]they may go on with[/]")
            for text in asks:
                showing.console().print(showing.prose(f"- {text}"))
        probes = [probe for point in question.keypoints for probe in point.probes]
        if probes:
            showing.console().print("\n [bold cyan]the engine can show it[/]")
            for probe in dict.fromkeys(probes):
                hint = terminal.as_typed(f"prep quiz --question {probe}")
                showing.console().print(f" - {hint}", style="dim")
    if not shown:
        raise terminal.Problem(
            f"{which} has no spoken answer: its answer is an experiment", f"prep quiz --question {ids[0]}"
        )
    if json:
        terminal.print_json(shown)
    else:
        terminal.next_command(f"prep quiz --question {shown[0]['id']}", "say it yourself")


def _list(bank: Bank, json: bool) -> None:
    """Print every numbered interview question and contradiction with the questions of the bank that cover it."""
    rows: list[dict[str, Any]] = [
        {"id": code, "question": text, "covered_by": bank.covering(code)} for code, text in codes().items()
    ]
    if json:
        return terminal.print_json(rows)
    for row in rows:
        terminal.say(f"[bold cyan]{row['id']}[/] {escape(row['question'])}")
        terminal.say(f"  [dim]{', '.join(row['covered_by'])}[/]")
    terminal.next_command("prep answer Q021")


def _show_cards(name: str, json: bool) -> bool:
    """Show the cards with this name; return whether there are any."""
    from app.cli import cards

    all_cards = cards.load()
    matches = [all_cards.card(card_id) for card_id in all_cards.find(name)]
    if json and matches:
        terminal.print_json([cards.as_json(card) for card in matches])
    elif matches:
        for card in matches:
            cards.print_card(card)
        cards.suggest(matches[0])
    return bool(matches)


def _as_listed(which: str) -> str:
    """Return a code as --list shows it: Q021 for q21, X5 for x05. Another text is returned as it is."""
    if not (code := _CODE.fullmatch(which)):
        return which
    letter = code[1].upper()
    return letter + code[2].zfill(3 if letter == "Q" else 1)


def _is_code(which: str) -> bool:
    return _CODE.fullmatch(which) is not None


def _find(bank: Bank, which: str) -> list[str]:
    """Return the ids of one question, or of all that cover a code, those with an interview answer first."""
    if not _is_code(which):
        bank.question(which)
        return [which]
    ids = bank.covering(which)
    if not ids:
        raise terminal.Problem(f"no question covers {which}", "prep answer --list")
    return ids
