"""Write entries as an Anki package. Needs the library genanki (the extra `cards`)."""

import html
import re
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

from quizzes.cards.sheets import Entry, lines

MODEL_ID = 1_607_392_319
"""Any fixed number: Anki knows a note type by it, so that a later import updates notes instead of doubling them."""
STYLE = """
.card { font-family: sans-serif; font-size: 18px; text-align: left; max-width: 40em; margin: auto }
.title { font-weight: bold } .answer { font-weight: bold; margin-bottom: .6em }
pre, code { font-family: monospace; font-size: 15px } pre { white-space: pre-wrap }
.id { opacity: .6; font-size: 13px; margin-top: 1em }
"""


def write(entries: Iterable[Entry], path: Path, seed: int) -> int:
    """Write the package and return the number of notes: a deck for each topic."""
    import genanki

    model = genanki.Model(
        MODEL_ID,
        "prep",
        fields=[{"name": name} for name in ("Title", "Front", "Answer", "Back", "Id")],
        templates=[
            {
                "name": "Card 1",
                "qfmt": '<div class="title">{{Title}}</div>{{Front}}',
                "afmt": '{{FrontSide}}<hr id="answer"><div class="answer">{{Answer}}</div>{{Back}}'
                '<div class="id">{{Id}}</div>',
            }
        ],
        css=STYLE,
    )
    decks: dict[str, genanki.Deck] = {}
    for entry in entries:
        name = f"prep::{entry.topic}"
        deck = decks.setdefault(name, genanki.Deck(crc32(name.encode()), name))
        shown = f"<pre>{html.escape(entry.exhibit)}</pre>" if entry.exhibit else ""
        note = genanki.Note(
            model=model,
            fields=[
                html.escape(entry.title),
                markup(entry.front) + shown,
                html.escape(entry.answer),
                markup(entry.back),
                f"{entry.id}, seed {seed}",
            ],
            guid=genanki.guid_for("prep", entry.id),
            tags=[entry.topic],
        )
        deck.add_note(note)
    genanki.Package(list(decks.values())).write_to_file(str(path))
    return sum(len(deck.notes) for deck in decks.values())


def markup(text: str) -> str:
    """Convert bold, code, list items and line breaks to HTML; everything else is escaped."""
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    return "<br>".join(lines(text))
