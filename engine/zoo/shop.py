"""The shop that the shipped models answer for: they know nothing but the notes in their system prompt."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from engine.zoo.catalogue import draw_catalogue
from engine.zoo.dialogue import QUESTIONS, Catalogue, system_prompt


@dataclass(frozen=True)
class Shop:
    """A seeded catalogue with its notes, and questions that they answer."""

    catalogue: Catalogue
    system: str
    questions: list[str]


def open_shop(seed: int = 0, *, titles: int = 5, language: str = "en") -> Shop:
    """The shop number `seed`, with titles that the models were not trained on."""
    rng = Random(f"shop/{seed}")
    catalogue = draw_catalogue(rng, language, titles, held_out=True)
    return Shop(catalogue, system_prompt(rng, catalogue), _questions(rng, catalogue))


def _questions(rng: Random, catalogue: Catalogue) -> list[str]:
    """One of each sort, about different titles."""
    ask = QUESTIONS[catalogue.language]
    titles = [item.title for item in catalogue.items]
    genre = catalogue.genre_picks[0][0]
    about = {"author": 0, "price": 1, "volumes": 2, "stock": 3, "genre": 4}
    single = [rng.choice(ask[kind]).format(t=titles[i % len(titles)]) for kind, i in about.items()]
    pair = rng.choice(ask["cheaper"]).format(a=titles[0], b=titles[1])
    pick = rng.choice(ask["by_genre"]).format(g=genre)
    return [single[0], single[1], pick, pair, *single[2:]]


def is_shop_model(model: str) -> bool:
    """Whether a model's name is one of the zoo's shop models, which need the notes to say anything true."""
    return model == "shop" or model.startswith("shop-")
