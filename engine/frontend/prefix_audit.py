"""Find what keeps logged prompts from hitting the prefix cache: the texts that change inside stable prompts.

A prefix hit ends at the first token that differs from what is cached, however much equal text follows. The audit
compares each prompt with the earlier one that resembles it most:

    earlier   [ stable text | 10:41 | stable text ......... | question A ]
    this one  [ stable text | 10:42 | stable text ......... | question B ]
              <- the hit ->   place   <- lost to the place ->

A place's cost is the equal text behind it, up to the next difference. The last difference costs nothing: no equal text
follows it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.core.hashing import BlockHasher
from engine.core.request import Request
from engine.frontend.prompt_log import LoggedPrompt
from engine.sampling_params import SamplingParams

NUM_COMPARED = 4
"""Earlier prompts of the same model and salt that a prompt is compared with."""
CONTEXT = 16
"""Tokens decoded around a difference, to show whole words."""
KEY = 12
"""Characters before a difference that tell places apart; digits count as equal."""


@dataclass(frozen=True)
class Difference:
    """Tokens [start, stop) of a prompt replace [old_start, old_stop) of the earlier one; `stable` equal ones follow."""

    old_start: int
    old_stop: int
    start: int
    stop: int
    stable: int


@dataclass
class Place:
    """The same kind of change behind the same text, in one or more requests."""

    kind: str
    after: str
    """The text before it."""
    was: str
    now: str
    """An example: the text in two requests."""
    num_requests: int = 0
    num_tokens: int = 0
    """Prompt tokens that the requests computed because of it."""


@dataclass
class PrefixAudit:
    """Hits of a log's prompts in a cache that never evicts, and what they could be."""

    block_size: int
    num_requests: int = 0
    num_tokens: int = 0
    hit_tokens: int = 0
    possible_tokens: int = 0
    """Hits if every place were stable."""
    places: list[Place] = field(default_factory=list)
    """Costliest first."""

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.num_tokens

    @property
    def possible_hit_rate(self) -> float:
        return self.possible_tokens / self.num_tokens


def audit_prompts(
    prompts: Iterable[LoggedPrompt], decode: Callable[[Sequence[int]], str], block_size: int = 16
) -> PrefixAudit:
    """Return the hits of prompts that arrive one after the other, and the places that cost hits.

    decode: tokens to text. A hit is of full blocks, and the last token of a prompt is always computed, as in the engine
    and in vLLM (v1/core/kv_cache_manager.py, get_computed_blocks).
    """
    audit, hasher = PrefixAudit(block_size), BlockHasher(block_size)
    cached: set[bytes] = set()
    earlier: dict[tuple[str | None, str | None], deque[list[int]]] = {}
    places: dict[tuple[str, str], Place] = {}
    for prompt in prompts:
        tokens = prompt.token_ids
        hit = _hit_tokens(prompt, hasher, cached)
        recent = earlier.setdefault((prompt.model, prompt.cache_salt), deque(maxlen=NUM_COMPARED))
        possible = hit
        if recent:
            old, differences = _closest(recent, tokens, block_size)
            equal = sum(difference.stable for difference in differences) + _common(old, tokens)
            possible = max(hit, min(equal, len(tokens) - 1) // block_size * block_size)
            for difference in differences:
                if possible > hit and difference.stable:
                    _record(places, difference, old, tokens, decode)
        audit.num_requests += 1
        audit.num_tokens += len(tokens)
        audit.hit_tokens += hit
        audit.possible_tokens += possible
        if tokens not in recent:
            recent.append(tokens)
    audit.places = sorted(places.values(), key=lambda place: -place.num_tokens)
    return audit


def _hit_tokens(prompt: LoggedPrompt, hasher: BlockHasher, cached: set[bytes]) -> int:
    """Return the prompt's hit in tokens and add its full blocks to `cached`."""
    request = Request(
        "", prompt.token_ids, SamplingParams(), lora_key=prompt.model, cache_salt=prompt.cache_salt
    )
    hasher.extend(request)
    most = (len(prompt.token_ids) - 1) // hasher.block_size
    num_hits = 0
    while num_hits < most and request.block_hashes[num_hits] in cached:
        num_hits += 1
    cached.update(request.block_hashes)
    return num_hits * hasher.block_size


def _closest(recent: Iterable[list[int]], tokens: list[int], gram: int) -> tuple[list[int], list[Difference]]:
    """Return the earlier prompt that shares most with this one, the latest of equals, and the differences."""
    aligned = [(old, list(differences(old, tokens, gram))) for old in reversed(list(recent))]
    return max(
        aligned, key=lambda pair: _common(pair[0], tokens) + sum(difference.stable for difference in pair[1])
    )


def differences(old: list[int], new: list[int], gram: int) -> Iterator[Difference]:
    """Yield how `new` differs from `old`, left to right; `gram` equal tokens end a difference."""
    at_old = at_new = _common(old, new)
    where: dict[tuple[int, ...], list[int]] = {}
    for index in range(at_old, len(old) - gram + 1):
        where.setdefault(tuple(old[index : index + gram]), []).append(index)
    while at_new < len(new):
        again = _next_stable(where, new, at_old, at_new, gram)
        if again is None:
            yield Difference(at_old, len(old), at_new, len(new), 0)
            return
        old_stop, stop = again
        while old_stop > at_old and stop > at_new and old[old_stop - 1] == new[stop - 1]:
            old_stop, stop = old_stop - 1, stop - 1
        stable = _common(old, new, old_stop, stop)
        yield Difference(at_old, old_stop, at_new, stop, stable)
        at_old, at_new = old_stop + stable, stop + stable


def _next_stable(
    where: dict[tuple[int, ...], list[int]], new: list[int], at_old: int, at_new: int, gram: int
) -> tuple[int, int] | None:
    """Return the first positions (old, new) from which `gram` tokens are equal."""
    for index in range(at_new, len(new) - gram + 1):
        places = where.get(tuple(new[index : index + gram]), [])
        first = bisect_left(places, at_old)
        if first < len(places):
            return places[first], index
    return None


def _common(old: list[int], new: list[int], at_old: int = 0, at_new: int = 0) -> int:
    """Return the number of equal tokens from two positions on."""
    most = min(len(old) - at_old, len(new) - at_new)
    return next((n for n in range(most) if old[at_old + n] != new[at_new + n]), most)


def _record(
    places: dict[tuple[str, str], Place],
    at: Difference,
    old: list[int],
    new: list[int],
    decode: Callable[[Sequence[int]], str],
) -> None:
    _, was = _in_words(old, at.old_start, at.old_stop, decode)
    after, now = _in_words(new, at.start, at.stop, decode)
    kind = kind_of(was, now)
    place = places.setdefault((kind, re.sub(r"\d", "0", after[-KEY:])), Place(kind, after, was, now))
    place.num_requests += 1
    place.num_tokens += at.stable


def _in_words(
    tokens: list[int], start: int, stop: int, decode: Callable[[Sequence[int]], str]
) -> tuple[str, str]:
    """Return the text before tokens [start, stop), and their text with the rest of the words that they cut."""
    first = max(0, start - CONTEXT)
    before = decode(tokens[first:start])
    text = decode(tokens[first:stop])[len(before) :]
    behind = decode(tokens[first : stop + CONTEXT])[len(before) + len(text) :]
    if not text[:1].isspace():
        whole = before.rstrip() if before[-1:].isspace() else re.sub(r"\S+$", "", before)
        before, text = whole, before[len(whole) :] + text
    if not text[-1:].isspace():
        text += re.split(r"\s", behind, maxsplit=1)[0]
    return before.strip(), text.strip() or text


KINDS = (
    ("date or time", re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2}|\b1[5-9]\d{8}\b")),
    ("id", re.compile(r"(?=\S*\d)(?=\S*[a-fA-F])[0-9a-fA-F-]{8,}")),
    ("number", re.compile(r"\d")),
)


def kind_of(was: str, now: str) -> str:
    """Name what changes between two texts: white space, order, date or time, id, number or text."""
    if was.split() == now.split():
        return "white space"
    if sorted(re.findall(r"\w+", was)) == sorted(re.findall(r"\w+", now)):
        return "order"
    for kind, pattern in KINDS:
        if pattern.search(was) and pattern.search(now):
            return kind
    return "text"
