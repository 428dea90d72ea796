"""Positions of merged images."""

from types import ModuleType
from typing import Any

PLACEHOLDER = 1000
"""The token that <image> becomes."""


class Tokenizer:
    """A word is a token; <image> is PLACEHOLDER."""

    def encode(self, text: str) -> list[int]:
        return [PLACEHOLDER if word == "<image>" else len(word) for word in text.split()]


def encoder(per_image: int, calls: list[int]) -> Any:
    """A vision encoder: `per_image` features for each image, of which it counts the calls."""

    def encode(images: list[Any]) -> list[list[float]]:
        calls.append(len(images))
        return [[float(image) + i / 100 for i in range(per_image)] for image in images]

    return encode


def _process(given: ModuleType, text: str, images: list[Any], per_image: int = 4) -> list[Any]:
    return list(given.MultiModalEngine(Tokenizer(), encoder(per_image, [])).process(text, images))


def position_of_the_image(given: ModuleType, *, before: int = 2, after: int = 3, per_image: int = 4) -> int:
    """Index of the first image feature in the input of "word word <image> word word word"."""
    text = " ".join(["w"] * before + ["<image>"] + ["w"] * after)
    combined = _process(given, text, [7], per_image)
    return next(i for i, item in enumerate(combined) if isinstance(item, float))


def placeholders_left(given: ModuleType, *, images: int = 2) -> int:
    """Placeholder tokens that the model still sees as words."""
    text = " ".join(["<image> w"] * images)
    return _process(given, text, list(range(images))).count(PLACEHOLDER)


def images_without_a_place(given: ModuleType, *, images: int = 2) -> int:
    """Features in the input of a text that has no place for an image."""
    return sum(isinstance(item, float) for item in _process(given, "no place here", list(range(images))))


def encoded_for_one_image_twice(given: ModuleType, *, requests: int = 2) -> int:
    """Images encoded when several requests send the same one."""
    calls: list[int] = []
    engine = given.MultiModalEngine(Tokenizer(), encoder(4, calls))
    for _ in range(requests):
        engine.process("<image> w", [7])
    return sum(calls)
