"""Race of the lab ngram-drafter: steps to write fixed texts. A step adds the drafts that are right, and one token.

No model runs: the output of each request is given, so a draft is accepted exactly if it is the next token of it. The
result is the same on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from lessons.course.checking import Learner
from lessons.labs.racing import Differences, Race, racer

DRAFTS, MIN_N, MAX_N = 4, 2, 5
"""Drafts per step, and the engine's default sizes of an ending."""
_WORD = re.compile(r" ?\w+|\s+|[^\w\s]")
"""A token is a word with the space before it, a run of white space, or a sign."""
_PLACES = ("Kyoto", "Osaka", "Nara", "Kobe", "Sendai", "Sapporo", "Nagoya", "Hakata")
_STATES = ("packed", "shipped", "on the way", "in customs", "at the depot", "delivered")
_NOUNS = ("supplier", "buyer", "carrier", "agent", "insurer", "broker")
_VERBS = ("inspect", "deliver", "replace", "insure", "store", "label", "return")
_THINGS = ("goods", "pallets", "documents", "samples", "containers", "spare parts")
_NAMES = ("block", "request", "token", "slot", "queue", "worker", "cache", "batch")


class Text(NamedTuple):
    """A request as token ids: its prompt and its output."""

    prompt: list[int]
    output: list[int]


class Search:
    """A drafter that looks at the whole text in every step: the baselines."""

    def __init__(self, min_n: int, max_n: int, first: bool) -> None:
        self.sizes, self.first, self.text = range(max_n, min_n - 1, -1), first, ""

    def extend(self, token_ids: list[int]) -> None:
        self.text += "".join(map(chr, token_ids))

    def propose(self, k: int) -> list[int]:
        for size in self.sizes:
            find = self.text.find if self.first else self.text.rfind
            place = find(self.text[-size:], 0, len(self.text) - 1)
            if place >= 0:
                return list(map(ord, self.text[place + size : place + size + k]))
        return []


def tracks(seed: int) -> Iterator[tuple[str, list[Text]]]:
    """Yield the workloads: three fixed ones, and a mixture that the seed draws."""
    fixed = {"chat": _chat, "long documents": _document, "agents": _agent}
    for name, make in fixed.items():
        rng = Random(f"lookup-{name}")
        yield name, [_tokens(*make(rng)) for _ in range(6)]
    rng = Random(seed)
    yield f"drawn by seed {seed}", [_tokens(*rng.choice(list(fixed.values()))(rng)) for _ in range(6)]


def _tokens(prompt: str, output: str) -> Text:
    """Return texts as token ids of a vocabulary of their own."""
    ids: dict[str, int] = {}
    parts = (
        [ids.setdefault(word, 1 + len(ids)) for word in _WORD.findall(text)] for text in (prompt, output)
    )
    return Text(*parts)


def _chat(rng: Random) -> tuple[str, str]:
    """A customer asks again and again about orders whose state changes; the last answer sums them up."""
    orders = [(rng.randint(1000, 9999), rng.choice(_PLACES)) for _ in range(5)]
    turns, state = [], {}
    for _ in range(14):
        number, place = rng.choice(orders)
        state[number] = rng.choice(_STATES)
        turns.append(f"User: Where is order {number}?")
        turns.append(
            f"Shop: Your order {number} to {place} is {state[number]}. It leaves within {rng.randint(2, 9)} days."
        )
    told = [
        f"Your order {number} to {place} is {state[number]}." for number, place in orders if number in state
    ]
    opening = rng.choice(("Thank you for asking. ", "Here is the list. ", "Of course. "))
    return "\n".join(turns) + "\nUser: Please sum up my orders.\nShop: ", opening + " ".join(told)


def _document(rng: Random) -> tuple[str, str]:
    """A contract of clauses that resemble each other; the answer quotes some of them."""
    clauses = [
        f"{number}. The {rng.choice(_NOUNS)} shall {rng.choice(_VERBS)} the {rng.choice(_THINGS)} in "
        f"{rng.choice(_PLACES)} within {rng.randint(3, 60)} days, unless the {rng.choice(_NOUNS)} has agreed to "
        f"{rng.choice(_VERBS)} the {rng.choice(_THINGS)} in writing."
        for number in range(1, 121)
    ]
    quotes = rng.sample(clauses, 8)
    answer = "These clauses apply. " + " ".join(f"Clause {quote}" for quote in quotes)
    return "\n".join(clauses) + "\nWhich clauses apply? ", answer


def _agent(rng: Random) -> tuple[str, str]:
    """An agent has read a file, edited it twice, and writes it once more with another edit."""
    functions = [
        [f"def {verb}_{name}({name}):", f"    if {name} is None:", "        return None"]
        + [f"    {name}.{rng.choice(_VERBS)}({rng.randint(0, 9)})" for _ in range(rng.randint(2, 4))]
        + [f"    return {name}"]
        for verb, name in zip(rng.sample(_VERBS, 6), rng.sample(_NAMES, 6), strict=True)
    ]
    versions = []
    for _ in range(4):
        versions.append("\n\n".join("\n".join(lines) for lines in functions))
        for lines in rng.sample(functions, 3):
            lines[-2] = f"{lines[-2].split('.')[0]}.{rng.choice(_VERBS)}({rng.randint(10, 99)})"
    calls = [f'{{"tool": "write", "path": "shop.py", "text":\n{version}\n}}\nok\n' for version in versions]
    return "Keep the file up to date.\n" + "".join(calls[:-1]), calls[-1]


def write(drafter: Any, text: Text) -> tuple[list[list[int]], int]:
    """Write the output with a drafter; return the drafts of each step, and how many of all were accepted."""
    said, done, accepted = [], 0, 0
    drafter.extend(text.prompt)
    while done < len(text.output):
        drafts = drafter.propose(DRAFTS)
        left = text.output[done:]
        right = next(
            (at for at, pair in enumerate(zip(drafts, left, strict=False)) if pair[0] != pair[1]), None
        )
        right = min(len(drafts), len(left)) if right is None else right
        new = left[: right + 1]
        said.append(drafts)
        done, accepted = done + len(new), accepted + right
        drafter.extend(new)
    return said, accepted


def race(yours: str, ours: str, seed: int = 0) -> Race:
    rows, ratios, differences = [], [], Differences("ngram-drafter", "proposal")
    with racer(yours) as your_guest, racer(ours) as our_guest:
        guests = your_guest, our_guest
        for track, texts in tracks(seed):
            makers: dict[str, Any] = {
                "yours": lambda: Learner(your_guest).new("NgramDrafter", MIN_N, MAX_N),
                "ours": lambda: Learner(our_guest).new("NgramDrafter", MIN_N, MAX_N),
                "first of 2-5 (vLLM)": lambda: Search(MIN_N, MAX_N, first=True),
                "first of 5 (vLLM)": lambda: Search(5, 5, first=True),
                "last of 2": lambda: Search(2, 2, first=False),
                "no drafts": lambda: Search(1, 0, first=False),
            }
            num_tokens, steps, told = sum(len(text.output) for text in texts), {}, {}
            for name, make in makers.items():
                runs = [write(make(), text) for text in texts]
                told[name] = [str(drafts) for said, _ in runs for drafts in said]
                steps[name] = len(told[name])
                proposed = sum(len(drafts) for said, _ in runs for drafts in said)
                accepted = sum(each for _, each in runs)
                share = f"{accepted / proposed:.0%}" if proposed else "-"
                rows.append((track, name, f"{steps[name]:,}", f"{num_tokens / steps[name]:.2f}", share))
            ratios.append(steps["yours"] / steps["ours"])
            differences.look(track, told, guests)
    says = f"your steps over ours for the same texts, the worst of {len(ratios)} workloads; less is better"
    columns = ("workload", "drafter", "steps", "tokens per step", "accepted")
    return differences.race(columns, rows, max(ratios), says, "steps")
