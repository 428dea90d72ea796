"""Drafts by n-gram look-up."""

import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Literal

from quizzes.experiments import Result, arg, experiment


@experiment("E37", megabytes=2500)
def lookup(
    tokens: list[int] = arg([5, 6, 7, 8, 9, 5, 6, 7], 0, 1_000_000, count=(1, 5000)),
    shortest: int = arg(2, 1, 20),
    longest: int = arg(5, 1, 20),
    k: int = arg(3, 1, 16),
) -> Result:
    """Find the drafts that the engine's n-gram drafter proposes for a list of tokens.

    The drafter takes the longest suffix that occurred before, at its last occurrence.

    Returns: Proposals after the last token.
        drafts [token ids]; num_drafts [drafts]
        looked_up [tokens]: Length of the ending that was found earlier; 0: none, and nothing is proposed.
    """
    import numpy as np

    from engine.spec.ngram import continuation

    text = np.array(tokens, np.int32)
    found = continuation(text, shortest, longest, k)
    size = next((n for n in range(longest, shortest - 1, -1) if continuation(text, n, n, 1)), 0)
    return Result(drafts=found, num_drafts=len(found), looked_up=size)


ENGINE = Path(__file__).parents[3] / "engine"
FILES = {"code": ENGINE / "core" / "scheduler.py", "prose": ENGINE / "zoo" / "README.md"}


@experiment("E37", seconds=20, megabytes=2500)
def prompt_lookup(
    text: Literal["code", "prose", "json"] = "code",
    task: Literal["write", "edit"] = "write",
    k: int = arg(4, 1, 16),
    shortest: int = arg(2, 1, 8),
    longest: int = arg(5, 1, 8),
    tokens: int = arg(1500, 200, 3000),
) -> Result:
    """Measure how much of real code, prose and JSON an n-gram drafter predicts.

    A text is replayed as a greedy model's answer. write: the drafter knows only the answer so far. edit: the prompt
    holds the text, and the answer is the same text with one word renamed, as in a refactoring. code: the engine's own
    scheduler. prose: a page of its documentation. json: rows of an invented catalogue.

    Returns: A text replaces the model's output; the drafter sees everything before each position.
        tokens_per_step [tokens]
        acceptance_rate [share]: Accepted drafts over proposed ones.
        steps, steps_with_drafts [steps]; tokens [tokens]
    """
    import numpy as np

    from engine.spec.ngram import continuation
    from engine.zoo.registry import MODELS
    from engine.zoo.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(MODELS / "shop")
    written = read(text)
    answer = tokenizer.encode(written).ids[:tokens]
    known = []
    if task == "edit":
        (word, _), *_ = Counter(re.findall(r"[A-Za-z_]{6,}", written)).most_common(1)
        known, answer = answer, tokenizer.encode(written.replace(word, "renamed")).ids[:tokens]
    sequence = np.array([*known, *answer], np.int32)
    place, steps, drafted, accepted, with_drafts = len(known) + 1, 0, 0, 0, 0
    while place < len(sequence):
        drafts = continuation(sequence[:place], shortest, longest, k) if place >= 2 else []
        truth = sequence[place : place + len(drafts)].tolist()
        right = next((i for i, (d, t) in enumerate(zip(drafts, truth, strict=False)) if d != t), len(truth))
        steps, drafted, accepted = steps + 1, drafted + len(drafts), accepted + right
        with_drafts += bool(drafts)
        place += right + 1
    return Result(
        tokens_per_step=(len(answer) - 1) / steps,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        steps=steps,
        steps_with_drafts=with_drafts,
        tokens=len(answer),
    )


def read(text: str) -> str:
    """Return the text by name."""
    if text != "json":
        return FILES[text].read_text(encoding="utf-8")

    from engine.zoo.catalogue import draw_catalogue

    items = [item for seed in range(12) for item in draw_catalogue(Random(seed), "en", 8).items]
    fields = ("title", "author", "price", "volumes")
    return json.dumps([{field: getattr(item, field) for field in fields} for item in items], indent=1)
