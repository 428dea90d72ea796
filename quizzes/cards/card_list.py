"""Index of all cards: `bank/<kind>s.yaml`, each a list.

cards = load_cards()
cards.card("hardware.h100").device
cards.find("h100")                  # ["hardware.h100"]
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quizzes import yaml_files
from quizzes.yaml_files import BadFile, Document, Index

BANK = Path(__file__).parent / "bank"
_SCHEMA_FILES = [BANK.parents[1] / name for name in ("cards/card.py", "question.py", "topics.py")]


@dataclass(frozen=True, slots=True)
class Entry:
    """Index entry of a card."""

    id: str
    title: str
    topics: tuple[str, ...]
    names: tuple[str, ...]
    facts: int
    run: str
    """The experiment of its miniature; "" without one."""
    date: str
    """The day of a release; "" for other cards."""

    @property
    def kind(self) -> str:
        return self.id.split(".")[0]


class Cards(Index[Entry]):
    """Cards by id."""

    def card(self, card_id: str) -> Any:
        """Return the whole card (`card.Card`). Raises UnknownId."""
        from quizzes.cards.card import parse

        return parse(self.data(card_id, "no card is called", "prep cards list"))

    def find(self, name: str) -> list[str]:
        """Return the ids of the cards with this id or name; case, spaces and punctuation do not matter."""
        wanted = _plain(name)
        return [
            entry.id
            for entry in self
            if wanted in map(_plain, (entry.id, entry.id.partition(".")[2], entry.title, *entry.names))
        ]


def load_cards(folder: Path = BANK) -> Cards:
    """Load every card. Broken entries are left out and listed in `problems`."""
    documents, problems = yaml_files.load(folder, _check, _SCHEMA_FILES)
    kept: dict[str, Document] = {}
    for document in documents:
        card_id = document.data["id"]
        if f"{card_id.split('.')[0]}s" != Path(document.path).stem.replace("hardware", "hardwares"):
            problems = [*problems, BadFile(document.path, 1, f"{card_id} does not belong into this file")]
        elif card_id in kept:
            problems = [*problems, BadFile(document.path, 1, f"{card_id} appears twice")]
        else:
            kept[card_id] = document
    return Cards({name: _entry(document.data) for name, document in kept.items()}, problems, kept)


def _check(data: dict[str, Any]) -> None:
    from quizzes.cards.card import parse

    parse(data)


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(
        data["id"],
        data["title"],
        tuple(data["topics"]),
        tuple(data.get("names", ())),
        len(data.get("facts", ())) + len(data.get("features", ())),
        data.get("miniature", {}).get("run", ""),
        data.get("date", ""),
    )


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
