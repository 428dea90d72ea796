"""Seeded samples: sample `index` of a split is a pure function of (split, seed, index, rows).

Training can therefore stop and resume anywhere, and the splits are disjoint: they draw from different random streams,
and validation and test use titles that training never shows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

import numpy as np
from tokenizers import Tokenizer

from .catalogue import ADJECTIVES, draw_catalogue
from .dialogue import KIND_TO_TYPE, TOOLS, Conversation, write_conversation
from .tokenizer import TURN_END, render_chat

SPLITS = ("train", "validation", "test")
JAPANESE_SHARE = 0.35
JAPANESE_EMPHASIS = 0.5  # learned more slowly: its words have more tokens
SENTENCE_OPENERS = "Of Our Readers Returns Shipping We Reserved Gift Order Welcome You".split()
ECHO = -1
Rows = tuple[int, int]  # fewest and most titles of a shop
ROWS = (2, 8)  # rows of a catalogue after the curriculum, and in validation and test


@dataclass(frozen=True)
class Case:
    """One judged answer: the prompt up to the assistant's turn, and the expected answer."""

    language: str
    kind: str
    rows: int
    prompt: str
    answer: str


@dataclass(frozen=True)
class Sample:
    """A conversation as tokens.

    `answer_ids[i]` numbers the answer that token i belongs to, from 1. Context is 0, or ECHO where the context repeats
    itself: the token before has occurred already and was always followed by this one. Echoes teach copying.
    """

    tokens: np.ndarray
    answer_ids: np.ndarray


def draw_conversation(
    split: str, seed: int, index: int, rows: Rows = ROWS, emphasis: bool = False
) -> Conversation:
    """Return conversation `index` of a split; `emphasis` makes hard kinds more frequent."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    rng = Random(f"{split}/{seed}/{index}")
    held_out = split != "train"
    language = "ja" if rng.random() < (JAPANESE_EMPHASIS if emphasis else JAPANESE_SHARE) else "en"
    catalogue = draw_catalogue(rng, language, rng.randint(*rows), held_out)
    return write_conversation(rng, catalogue, rng.randint(6, 12), held_out, emphasis)


def tokenizer_texts(number: int = 6000) -> Iterator[str]:
    """Yield texts for the tokenizer's merges: the corpus, and title words at the start of a line."""
    for index in range(number):
        yield to_text(draw_conversation("train", 99, index))
    for words in (ADJECTIVES["en"], SENTENCE_OPENERS):
        for word in words:
            yield "\n".join([word] * (number // 10))


def conversations(split: str, seed: int, number: int, rows: Rows = ROWS) -> Iterator[Conversation]:
    return (draw_conversation(split, seed, index, rows) for index in range(number))


def to_text(conversation: Conversation) -> str:
    """Return the whole conversation in the chat template."""
    messages = [message.as_dict() for message in conversation.messages]
    return render_chat(messages, TOOLS if conversation.tools else None)


def to_cases(conversation: Conversation) -> list[Case]:
    """Return every answer of a conversation, with the correct conversation before it as the prompt."""
    cases = []
    tools = TOOLS if conversation.tools else None
    for position, message in enumerate(conversation.messages):
        if message.kind is not None:
            before = [earlier.as_dict() for earlier in conversation.messages[:position]]
            prompt = render_chat(before, tools, add_generation_prompt=True)
            shop = (conversation.language, message.kind, conversation.rows)
            cases.append(Case(*shop, prompt, message.content))
    return cases


def tokenize(conversation: Conversation, tokenizer: Tokenizer) -> Sample:
    """Tokenize a conversation and mark the answers, including the end of turn after each."""
    segments: list[tuple[str, int]] = []
    text, done, opening = to_text(conversation), 0, "<|im_start|>assistant\n"
    answers = [message.content for message in conversation.messages if message.kind is not None]
    for number, answer in enumerate(answers, 1):
        start = text.index(opening, done) + len(opening)
        end = start + len(answer) + len(TURN_END)
        segments += [(text[done:start], 0), (text[start:end], number)]
        done = end
    encoded = tokenizer.encode_batch_fast([segment for segment, _ in segments])
    tokens = [np.asarray(part.ids, dtype=np.int64) for part in encoded]
    marks = [np.full(len(ids), mark, dtype=np.int64) for ids, (_, mark) in zip(tokens, segments, strict=True)]
    sample = Sample(np.concatenate(tokens), np.concatenate(marks))
    _mark_echoes(sample)
    return sample


def _mark_echoes(sample: Sample) -> None:
    followers: dict[int, int] = {}  # the only token that has followed this one; ECHO after two different ones
    tokens = sample.tokens.tolist()
    for place in range(1, len(tokens)):
        before, token = tokens[place - 1], tokens[place]
        known = followers.get(before)
        if known == token and sample.answer_ids[place] == 0:
            sample.answer_ids[place] = ECHO
        elif known is not None and known != token:
            followers[before] = ECHO
        elif known is None:
            followers[before] = token


def draw_cases(
    n: int,
    seed: int = 0,
    split: str = "test",
    rows: Rows = ROWS,
    draw: Callable[..., Conversation] = draw_conversation,
    kinds: Collection[str] = KIND_TO_TYPE.keys(),
) -> list[Case]:
    """Draw at least `n` answers of some kinds from whole conversations."""
    cases: list[Case] = []
    indices = count()
    while len(cases) < n:
        conversation = draw(split, seed, next(indices), rows)
        cases += [case for case in to_cases(conversation) if case.kind in kinds]
    return cases
