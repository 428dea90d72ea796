"""Shops for the shipped models, which know only the notes in their system prompt."""

from __future__ import annotations

import filecmp
from dataclasses import dataclass
from random import Random

from engine.zoo.catalogue import draw_catalogue
from engine.zoo.dialogue import QUESTIONS, Catalogue, system_prompt
from engine.zoo.registry import MODELS, resolve


@dataclass(frozen=True)
class Shop:
    """A seeded catalogue, its notes (the system prompt), and questions about them."""

    catalogue: Catalogue
    system: str
    questions: list[str]


def open_shop(seed: int = 0, *, titles: int = 5, language: str = "en") -> Shop:
    """Return shop number `seed`, with titles that training never showed, and a question of each kind."""
    rng = Random(f"shop/{seed}")
    catalogue = draw_catalogue(rng, language, titles, held_out=True)
    system = system_prompt(rng, catalogue)
    ask, names = QUESTIONS[catalogue.language], [item.title for item in catalogue.items]
    kinds = ("author", "price", "volumes", "stock", "genre")  # about different titles
    single = [rng.choice(ask[kind]).format(t=names[i % len(names)]) for i, kind in enumerate(kinds)]
    pair = rng.choice(ask["cheaper"]).format(a=names[0], b=names[1])
    pick = rng.choice(ask["by_genre"]).format(g=catalogue.genre_picks[0][0])
    return Shop(catalogue, system, [single[0], single[1], pick, pair, *single[2:]])


def is_shop_model(model: str) -> bool:
    """Return whether a model (name or folder) has the shop's tokenizer: without the notes it answers nonsense."""
    try:
        tokenizer = resolve(model) / "tokenizer.json"
    except FileNotFoundError:
        return False
    return tokenizer.is_file() and filecmp.cmp(tokenizer, MODELS / "shop" / "tokenizer.json", shallow=False)
