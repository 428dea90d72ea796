"""Race of the lab grammar-mask: milliseconds for the masks of a grammar's first request, and of 10 more.

Each contestant in Python runs in a process of its own, in turns. The automaton is built before and costs them nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from statistics import median
from typing import Any

import numpy as np

from engine.frontend.tokenizer import Tokenizer
from engine.grammar.dfa import START
from engine.grammar.dfa_backend import CompiledDFA
from engine.grammar.json_schema import schema_tree
from engine.grammar.regex import Choice, Node, literal, parse
from engine.grammar.vocabulary import Vocabulary
from engine.zoo import registry
from lessons.given.mask_load import seconds_of
from lessons.labs.grammar_mask.checks import Automaton
from lessons.labs.racing import Race, first_difference, racer

ROUNDS, REQUESTS, LONGEST = 5, 11, 40
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "price": {"type": "integer"},
        "in_stock": {"type": "boolean"},
    },
    "required": ["title", "price", "in_stock"],
}


class EachToken:
    """The naive grammar: every token of the vocabulary is tried at every position, and nothing is kept."""

    def __init__(self, automaton: Any, start: int, tokens: Sequence[bytes], eos: Sequence[int]) -> None:
        self.automaton, self.here, self.tokens, self.eos = automaton, start, tokens, eos

    def start(self) -> EachToken:
        return EachToken(self.automaton, self.here, self.tokens, self.eos)

    def after(self, token: int) -> int | None:
        if token in self.eos or not self.tokens[token]:
            return None
        here = self.here
        for byte in self.tokens[token]:
            if (following := self.automaton(here)[0].get(byte)) is None:
                return None
            here = following
        return here

    def mask(self) -> array[int]:
        words = array("I", bytes(4 * -(-len(self.tokens) // 32)))
        allowed = [token for token in range(len(self.tokens)) if self.after(token) is not None]
        for token in [*allowed, *(self.eos if self.automaton(self.here)[1] else [])]:
            words[token // 32] |= 1 << token % 32
        return words

    def accept(self, token_ids: list[int]) -> bool:
        following = self.after(token_ids[0])
        self.here = self.here if following is None else following
        return following is not None


class ByEngine:
    """The engine's backend, which walks over the trie of the vocabulary level by level in numpy."""

    def __init__(self, compiled: CompiledDFA) -> None:
        self.compiled = compiled

    def start(self) -> ByEngine:
        self.place = self.compiled.start()
        return self

    def mask(self) -> Any:
        words = np.empty(self.compiled.vocabulary.num_words, np.int32)
        self.place.fill_bitmask(words)
        return words.view(np.uint32)

    def accept(self, token_ids: list[int]) -> bool:
        return self.place.accept_tokens(token_ids)


@cache
def vocabulary() -> Vocabulary:
    tokenizer = Tokenizer.from_folder(registry.resolve("shop"))
    assert tokenizer.eos_token_id is not None
    return Vocabulary.of(tokenizer, tokenizer.vocab_size, [tokenizer.eos_token_id])


def tracks(seed: int) -> Iterator[tuple[str, Node]]:
    """Yield the grammars: three fixed ones, and a pattern that the seed draws."""
    answers = (
        "yes, in two days",
        "yes, in a week",
        "yes",
        "no",
        "no, it is sold out",
        "please ask again later",
    )
    yield "choice", Choice(tuple(map(literal, answers)))
    yield "JSON", schema_tree(SCHEMA, compact=True)
    yield "Japanese", parse("[ぁ-ん一-龯、]{5,30}。")
    rng = Random(seed)
    parts = ["[0-9]{1,6}", "[a-z ]{3,20}", "(yen|euro|dollars)", '"[^"]{0,12}"', "[A-Za-z0-9_.-]+"]
    yield f"seed {seed}", parse(", ".join(rng.choices(parts, k=4)))


def paths(compiled: CompiledDFA, rng: Random) -> list[list[int]]:
    """Return the tokens of random requests, each allowed by the grammar; a longer token is likelier."""
    found = []
    for _ in range(REQUESTS):
        grammar, path = compiled.start(), list[int]()
        words = np.empty(compiled.vocabulary.num_words, np.int32)
        while len(path) < LONGEST:
            grammar.fill_bitmask(words)
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")
            allowed = [
                token for token in np.flatnonzero(bits).tolist() if compiled.vocabulary.token_bytes[token]
            ]
            if not allowed:
                break
            weights = [len(compiled.vocabulary.token_bytes[token]) ** 2 for token in allowed]
            path += rng.choices(allowed, weights)
            grammar.accept_tokens(path[-1:])
        found.append(path)
    return found


def states_of(tree: Node) -> dict[int, Any]:
    """Return all states of an automaton."""
    automaton, found, todo = Automaton(tree), {}, [START]
    while todo:
        number = todo.pop()
        if number not in found:
            found[number] = automaton.state(number)
            todo += found[number][0].values()
    return found


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows: list[tuple[str, ...]] = []
    ratios, differs = [], ""
    words = vocabulary()
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = {"yours": your_guest, "ours": our_guest}
        for track, tree in tracks(seed):
            known, states = CompiledDFA(tree, words), states_of(tree)
            requests = paths(known, Random(f"masks-{track}"))
            load = states, START, words.token_bytes, sorted(words.eos_token_ids), requests

            def engine(*_: Any, known: CompiledDFA = known, tree: Node = tree) -> ByEngine:
                fresh = CompiledDFA(tree, Vocabulary(list(words.token_bytes), words.eos_token_ids))
                fresh.dfa = known.dfa  # its states are built, as those of the others
                return ByEngine(fresh)

            seconds: dict[str, list[tuple[float, float]]] = {}
            masks: dict[str, list[str]] = {}
            for _ in range(ROUNDS):
                for name, guest in guests.items():
                    make = guest.get("Grammar")
                    first, more, told = guest.call("lessons.given.mask_load:seconds_of", make, *load)
                    seconds.setdefault(name, []).append((first, more))
                    masks[name] = [str(mask) for mask in told]
                seconds.setdefault("this engine", []).append(seconds_of(engine, *load)[:2])
            seconds["each token"] = [seconds_of(EachToken, *load)[:2]]
            for name, rounds in seconds.items():
                first, more = (1e3 * median(each) for each in zip(*rounds, strict=True))
                rows.append((track, name, f"{len(states)}", f"{first:.1f} ms", f"{more:.1f} ms"))
            pairs = zip(seconds["yours"], seconds["ours"], strict=True)
            ratios.append(median(sum(mine) / sum(theirs) for mine, theirs in pairs))
            differs = differs or first_difference(track, "mask", masks["yours"], masks["ours"])
    says = f"your time over ours, the worst of {len(ratios)} grammars; less is better, 1 is equal"
    columns = ("grammar", "contestant", "states", "first request", "10 more")
    return Race(columns, rows, max(ratios), says, differs)
