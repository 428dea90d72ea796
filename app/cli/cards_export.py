"""`prep cards export`: flash cards for Anki, and cheat sheets in PDF, from the bank and the cards."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from app.cli import terminal
from app.cli.options import TopicOption, make_folder_of, option
from prep_common.text import counted
from quizzes.topics import ROLES, TOPICS, resolve

if TYPE_CHECKING:
    from quizzes.cards.sheets import Entry


def export(
    anki: Annotated[Path | None, option("Write flash cards: an .apkg file.", metavar="FILE")] = None,
    pdf: Annotated[Path | None, option("Write a cheat sheet: a .pdf file.", metavar="FILE")] = None,
    topic: TopicOption = None,
    role: Annotated[
        str | None, option("Only questions of this role: inference, kernel, platform, sre or applied.")
    ] = None,
    seed: Annotated[int, option("Seed of the numbers in the questions.")] = 0,
    force: Annotated[bool, option("Overwrite the file if it exists.", "--force")] = False,
) -> None:
    """Export the bank's questions and the cards as flash cards or as a cheat sheet.

    The experiments run, and their figures are the answers. Without --topic or --role it takes about a minute.

    \b
    Examples:
      prep cards export --pdf memory.pdf --topic memory
      prep cards export --anki kernel.apkg --role kernel
      prep cards export --anki prep.apkg --pdf prep.pdf --force
    """
    wanted_role = resolve("role", role, ROLES) if role else None
    topics = [resolve("topic", topic, TOPICS)] if topic else list(TOPICS)
    _check(anki, ".apkg", "Anki decks need", "genanki", force)
    _check(pdf, ".pdf", "PDF sheets need", "fpdf", force)
    if anki is None and pdf is None:
        raise terminal.Problem("nothing to export", "prep cards export --pdf memory.pdf --topic memory")
    entries, left_out = _entries(topics, wanted_role, seed)
    if not entries:
        raise terminal.Problem(
            f"no question of role {wanted_role} has topic {topic}", "leave out --topic or --role"
        )
    if anki is not None:
        from quizzes.cards.anki import write as write_anki

        notes = write_anki(entries, anki, seed)
        terminal.say(f"{counted(notes, 'note')} in {terminal.literal(terminal.shown(anki))}", whole=True)
    if pdf is not None:
        from quizzes.cards.pdf import write as write_pdf

        title = f"prep: {topic or 'all topics'}" + (f" for {wanted_role}" if wanted_role else "")
        note = f"{counted(len(entries), 'entry')}, numbers of seed {seed}, computed on {date.today()}"
        with terminal.loading("the PDF"):
            pages = write_pdf(entries, pdf, title, note)
        terminal.say(f"{counted(pages, 'page')} in {terminal.literal(terminal.shown(pdf))}", whole=True)
    for line in left_out:
        terminal.note(f"[yellow]left out:[/] {terminal.literal(line)}")
    if anki is not None:
        terminal.note(
            "[dim]In Anki: File, Import. A later import updates the notes and keeps their schedule.[/]"
        )
    terminal.next_command(f"prep quiz --topic {topics[0]}", "the same questions with other numbers")


def _check(path: Path | None, suffix: str, what: str, library: str, force: bool) -> None:
    """Raise a Problem if the file cannot or must not be written; called before anything runs."""
    if path is None:
        return
    terminal.need_libraries(what, (library,), "cards export", "cards")
    shown = terminal.shown(path)
    if path.suffix != suffix:
        raise terminal.Problem(f"{shown} does not end in {suffix}", f"use {path.with_suffix(suffix).name}")
    if path.exists() and not force:
        raise terminal.Problem(f"{shown} exists", "use another name, or --force to overwrite it")
    make_folder_of(path)


def _entries(topics: list[str], role: str | None, seed: int) -> tuple[list[Entry], list[str]]:
    """Return the entries by topic, questions before cards, and what was left out, with the reason."""
    from app.cli.quiz.start import open_bank
    from quizzes.cards import sheets
    from quizzes.cards.card_list import load_cards
    from quizzes.experiments.registry import Inconclusive, NeedsHardware
    from quizzes.experiments.runner import RunFailed, Runner

    bank, cards = open_bank(), load_cards()
    questions = sheets.question_ids(bank, topics, role)
    in_topic = sheets.card_ids(cards, topics)
    done: list[Entry] = []
    left_out: list[str] = []
    with Runner() as runner, terminal.progress(len(questions) + len(in_topic), "entries") as advance:

        def run(name: str, args: dict[str, Any]) -> dict[str, Any]:
            return runner.run(name, args).result

        for name in [*questions, *in_topic]:
            advance(name)
            try:
                if name in in_topic:
                    done.append(sheets.of_card(cards.card(name), in_topic[name], run))
                else:
                    done.append(sheets.of_question(bank.question(name), seed, run))
            except (RunFailed, Inconclusive, NeedsHardware, ValueError) as error:
                left_out.append(f"{name}: {error}")
    return sorted(done, key=lambda entry: topics.index(entry.topic)), left_out
