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
    """Return shop number `seed`, with titles that training never showed."""
    rng = Random(f"shop/{seed}")
    catalogue = draw_catalogue(rng, language, titles, held_out=True)
    return Shop(catalogue, system_prompt(rng, catalogue), _questions(rng, catalogue))


def _questions(rng: Random, catalogue: Catalogue) -> list[str]:
    """Return one question of each kind, about different titles."""
    ask = QUESTIONS[catalogue.language]
    titles = [item.title for item in catalogue.items]
    genre = catalogue.genre_picks[0][0]
    about = {"author": 0, "price": 1, "volumes": 2, "stock": 3, "genre": 4}
    single = [rng.choice(ask[kind]).format(t=titles[i % len(titles)]) for kind, i in about.items()]
    pair = rng.choice(ask["cheaper"]).format(a=titles[0], b=titles[1])
    pick = rng.choice(ask["by_genre"]).format(g=genre)
    return [single[0], single[1], pick, pair, *single[2:]]


def is_shop_model(model: str) -> bool:
    """Return whether a model (name or folder) has the shop's tokenizer: without the notes it answers nonsense."""
    try:
        tokenizer = resolve(model) / "tokenizer.json"
    except FileNotFoundError:
        return False
    return tokenizer.is_file() and filecmp.cmp(tokenizer, MODELS / "shop" / "tokenizer.json", shallow=False)
