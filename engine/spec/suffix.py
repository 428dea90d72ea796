"""Suffix decoding: draft what most often followed the text's ending, in this request and in earlier answers.

    ending  ... "price" ":"              occurred 5 times before

        "price" ":"  --4/5-->  640  --4/4-->  ,  --3/4-->  "currency"        drafts: 640 ,  "currency"
                     --1/5-->  720                                             while the path's probability is enough

The occurrences of an ending form a node of a suffix tree; its children are the tokens that followed, with counts. Two
trees are asked: one of the request's own prompt and output, one of the outputs of finished requests. Each length of the
ending is a candidate: a longer one has fewer occurrences, and may draft more. The draft with the largest expected
number of accepted tokens (the sum of its paths' probabilities) wins. Agents and templates repeat whole passages, which
prompt lookup, with a fixed number of drafts from one occurrence, does not exploit.

Source: Oliaro et al. 2024 (2411.04975); vLLM v1/spec_decode/suffix_decoding.py, whose trees are those of the library
Arctic Inference. Here a tree is an index of bigrams into the text: the same candidates, one integer per token, for
endings of at least 2 tokens and the latest MOST_OCCURRENCES of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from engine.core.sched_output import RequestInit
from engine.spec.base import DrafterContext, DraftStep

MOST_OCCURRENCES = 32
_BORDER = -1
"""Between two texts; no ending and no draft contains it."""


@dataclass(frozen=True)
class SuffixLimits:
    """Settings `suffix_decoding_*` of vLLM."""

    max_tree_depth: int
    """Tokens of an ending and its drafts together."""
    max_spec_factor: float
    """Drafts per token of the ending."""
    min_token_prob: float
    """Least probability of a drafted path."""


class SuffixIndex:
    """A text with the places of its bigrams."""

    def __init__(self) -> None:
        self._text: list[int] = []
        self._places: dict[tuple[int, int], deque[int]] = {}
        """The latest indices behind each bigram, oldest first."""

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Sequence[int]) -> None:
        text = self._text
        last = text[-1] if text else _BORDER
        for token in tokens:
            text.append(token)
            if last != _BORDER and token != _BORDER:
                places = self._places.get((last, token))
                if places is None:
                    places = self._places[last, token] = deque(maxlen=MOST_OCCURRENCES)
                places.append(len(text))
            last = token

    def draft(self, ending: Sequence[int], most: int, limits: SuffixLimits) -> tuple[list[int], float]:
        """Return up to `most` tokens after the ending, and the number of them expected to be accepted."""
        best: tuple[list[int], float] = ([], 0.0)
        if len(ending) < 2:
            return best
        text = self._text
        places = [place for place in self._places.get((ending[-2], ending[-1]), ()) if place < len(text)]
        lengths = {place: self._match_length(ending, place) for place in places}
        for length in range(max(lengths.values(), default=0), 1, -1):
            count = min(most, int(limits.max_spec_factor * length), limits.max_tree_depth - length)
            if count <= best[1]:  # each draft adds 1 at most
                continue
            nodes = [place for place in places if lengths[place] >= length]
            walk = self._walk(nodes, count, limits.min_token_prob)
            if walk[1] > best[1]:
                best = walk
        return best

    def _match_length(self, ending: Sequence[int], place: int) -> int:
        """Return how many tokens before `place` equal the end of `ending`."""
        length, most = 2, min(len(ending), place)
        while length < most and self._text[place - length - 1] == ending[-length - 1] != _BORDER:
            length += 1
        return length

    def _walk(self, places: list[int], count: int, min_prob: float) -> tuple[list[int], float]:
        """Follow the most frequent token from node to node."""
        text = self._text
        drafts: list[int] = []
        probability, expected = 1.0, 0.0
        while len(drafts) < count:
            following = Counter(text[place] for place in places if place < len(text))
            del following[_BORDER]
            if not following:
                break
            token, hits = following.most_common(1)[0]
            probability *= hits / len(places)
            if probability < min_prob:
                break
            drafts.append(token)
            expected += probability
            places = [place + 1 for place in places if place < len(text) and text[place] == token]
        return drafts, expected


class FinishedOutputs:
    """Index of the outputs of finished requests; the oldest leave first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._outputs: deque[list[int]] = deque()
        self._num_indexed = 0
        """Outputs in the index, those included that have left the queue."""
        self.index = SuffixIndex()

    def add(self, output: list[int]) -> None:
        if not self._most or not output:
            return
        if (
            self._num_indexed >= 2 * self._most
        ):  # rebuilt from time to time, so an addition is cheap on average
            self.index, self._num_indexed = SuffixIndex(), 0
            for kept in islice(self._outputs, len(self._outputs) - self._most + 1, None):
                self._append(kept)
            self._outputs = deque(islice(self._outputs, len(self._outputs) - self._most + 1, None))
        self._outputs.append(output)
        self._append(output)

    def _append(self, output: list[int]) -> None:
        self.index.extend([*output, _BORDER])
        self._num_indexed += 1


@dataclass
class _Request:
    index: SuffixIndex
    output: list[int]


class SuffixDrafter:
    """Ask the request's own tree and that of finished outputs; take the better draft."""

    def __init__(self, context: DrafterContext) -> None:
        config = context.config
        self._limits = SuffixLimits(
            config.suffix_decoding_max_tree_depth,
            config.suffix_decoding_max_spec_factor,
            config.suffix_decoding_min_token_prob,
        )
        self.finished = FinishedOutputs(config.suffix_decoding_max_cached_requests)
        self._requests: dict[int, _Request] = {}
        """Running requests by state slot."""

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        index = SuffixIndex()
        index.extend(init.token_ids)
        self._requests[slot] = _Request(index, [])

    def remove_request(self, slot: int) -> None:
        self.finished.add(self._requests.pop(slot).output)

    def propose(self, step: DraftStep) -> list[list[int]]:
        rows = zip(step.slots.tolist(), step.lengths.tolist(), step.max_drafts, strict=True)
        return [self._propose(step, *row) for row in rows]

    def _propose(self, step: DraftStep, slot: int, length: int, most: int) -> list[int]:
        request = self._requests[slot]
        new = step.token_ids[slot, len(request.index) : length].tolist()
        request.index.extend(new)
        request.output += new
        if not most:
            return []
        ending = step.token_ids[slot, max(0, length - self._limits.max_tree_depth) : length].tolist()
        own = request.index.draft(ending, most, self._limits)
        shared = self.finished.index.draft(ending, most, self._limits)
        return max(own, shared, key=lambda draft: draft[1])[0]
