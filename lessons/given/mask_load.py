"""Requests of a grammar in the process that holds it: the race of the lab grammar-mask."""

from __future__ import annotations

from time import perf_counter
from typing import Any

State = tuple[dict[int, int], bool]


def seconds_of(
    make: Any,
    states: dict[int, State],
    start: int,
    tokens: list[bytes],
    eos: list[int],
    paths: list[list[int]],
) -> tuple[float, float, list[list[int]]]:
    """Ask for the mask before each token of some requests, one request after the other.

    states: the automaton, built before. Returns the seconds for a new grammar with the first request, those for all
    other requests, and the masks of the first.
    """
    began = perf_counter()
    grammar = make(states.__getitem__, start, tokens, eos)
    masks = _serve(grammar, paths[0])
    first = perf_counter()
    for path in paths[1:]:
        _serve(grammar, path)
    return first - began, perf_counter() - first, [mask.tolist() for mask in masks]


def _serve(grammar: Any, path: list[int]) -> list[Any]:
    place, masks = grammar.start(), []
    for token in path:
        masks.append(place.mask())
        place.accept([token])
    return masks
