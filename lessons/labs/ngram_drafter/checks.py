"""Checks of the lab ngram-drafter: rules alone, random texts, the cost of a step, the engine with the shop model."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from engine.core.errors import EngineDeadError
from engine.core.sched_output import RequestInit
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.spec.base import DrafterContext, DraftStep
from engine.spec.ngram import continuation
from lessons.course.checking import Failed, Learner, check, constant, refused, run_fewest, smallest
from lessons.mine.identity import quiet_engine
from prep_common.sandbox import GuestError, GuestStopped

LAB = "ngram-drafter"


def expected(text: Sequence[int], min_n: int, max_n: int, k: int, first: bool = False) -> list[int]:
    """Return the drafts by looking at every place: how many tokens before it equal the text's last ones."""
    best: tuple[int, int] = (0, 0)
    for place in range(1, len(text)):
        same = 0
        while same < min(place, max_n) and text[place - 1 - same] == text[-1 - same]:
            same += 1
        if same >= min_n and (same > best[0] if first else same >= best[0]):
            best = (same, place)
    return list(text[best[1] : best[1] + max(k, 0)]) if best[0] else []


def compare(
    learner: Learner,
    pieces: Sequence[Sequence[int]],
    min_n: int = 1,
    max_n: int = 3,
    k: int = 3,
    first: bool = False,
) -> None:
    """Extend a drafter by the pieces; raise Failed at the first proposal that differs."""
    given = [list(piece) for piece in pieces]
    found = learner.call(
        "lessons.given.ngram_load:replay", learner.get("NgramDrafter"), min_n, max_n, first, given, k
    )
    said = [f"NgramDrafter({min_n}, {max_n}{', first=True' if first else ''})"]
    text: list[int] = []
    for piece, drafts in zip(given, found, strict=True):
        text += piece
        said += [f"extend({piece})", f"propose({k})"]
        if drafts != (wanted := expected(text, min_n, max_n, k, first)):
            raise Failed(
                f"the drafts are {drafts!r}; by the rules they are {wanted}", example="; ".join(said)
            )


@check(LAB)
def drafts_follow_the_earlier_ending(learner: Learner) -> None:
    """The drafts are the tokens that followed the ending before."""
    compare(learner, [[1, 2, 3, 4, 5, 9, 2, 3]])
    compare(learner, [[7, 8, 7]], k=1)
    compare(learner, [[0, 1, 2, 0]], k=2)


@check(LAB)
def the_longest_ending_counts(learner: Learner) -> None:
    """A longer ending beats a later occurrence of a shorter one; no more than max_n tokens are compared."""
    compare(learner, [[1, 2, 3, 40, 3, 50, 1, 2, 3]], k=1)
    compare(learner, [[1, 2, 3, 40, 3, 50, 1, 2, 3]], 1, 1, k=1)
    compare(learner, [[9, 1, 2, 60, 8, 1, 2, 70, 9, 1, 2]], 1, 2, k=1)
    compare(learner, [[9, 1, 2, 60, 8, 1, 2, 70, 9, 1, 2]], 1, 3, k=1)


@check(LAB)
def the_last_occurrence_counts(learner: Learner) -> None:
    """The last of several occurrences of the longest ending counts."""
    compare(learner, [[5, 10, 5, 20, 5, 30, 5]], k=1)
    compare(learner, [[1, 2, 10, 1, 2, 20, 1, 2]], 1, 4, k=2)


@check(LAB)
def first_takes_the_first_occurrence(learner: Learner) -> None:
    """The first occurrence of the longest ending counts with `first`: the rule of vLLM."""
    compare(learner, [[5, 10, 5, 20, 5, 30, 5]], k=1, first=True)
    compare(learner, [[3, 50, 1, 2, 3, 40, 8, 1, 2, 3, 60, 1, 2, 3]], k=2, first=True)
    compare(learner, [[4] * 9], k=5, first=True)
    compare(learner, [[1, 2, 10, 1, 2, 20], [1], [2, 30, 1, 2]], 1, 4, k=2, first=True)


@check(LAB)
def short_endings_are_not_enough(learner: Learner) -> None:
    """An ending of fewer than min_n tokens proposes nothing."""
    compare(learner, [[1, 2, 3, 9, 3]], 2, 4)
    compare(learner, [[1, 2, 3, 9, 2, 3]], 2, 4)
    compare(learner, [[1, 2, 3, 9, 2, 3]], 3, 3)


@check(LAB)
def occurrences_may_overlap(learner: Learner) -> None:
    """An occurrence may overlap the ending, but the ending is not its own occurrence."""
    for text in ([4, 4], [4, 4, 4], [4, 4, 4, 4, 4], [1, 2, 1, 2, 1], [1, 2], [1, 1, 2]):
        compare(learner, [text])
        compare(learner, [text], 2, 3)


@check(LAB)
def no_more_than_k(learner: Learner) -> None:
    """At most k drafts; fewer where the text ends; none for k of 0 or less, and none for an empty text."""
    for k in (-3, -1, 0, 1, 3, 9):
        compare(learner, [[1, 2, 3, 4, 1]], k=k)
    compare(learner, [[], [3], [], [3]])


@check(LAB)
def pieces_are_one_text(learner: Learner) -> None:
    """The text is the same in pieces of any size, and n-grams reach across them; a proposal changes nothing."""
    text = [1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3, 7, 1, 2, 3]
    for size in (1, 2, 3, 5, 15):
        compare(learner, [text[at : at + size] for at in range(0, len(text), size)])
    drafter, tokens = learner.new("NgramDrafter", 1, 3), learner.put([5, 6, 5])
    drafter.extend(tokens)
    tokens.append(9)
    seen = [drafter.propose(2), drafter.propose(2)]
    if seen != [[6, 5], [6, 5]]:
        raise Failed(
            f"the drafts are {seen[0]}, and for the same call again {seen[1]}; expected [6, 5] twice",
            example="tokens = [5, 6, 5]; extend(tokens); tokens.append(9); propose(2); propose(2)",
        )
    if (now := tokens.content()) != [5, 6, 5, 9]:
        raise Failed(f"extend has changed its argument: {now}", example="extend([5, 6, 5])")


@check(LAB)
def drafters_share_nothing(learner: Learner) -> None:
    """Each request has a text of its own."""
    one, two = learner.new("NgramDrafter", 1, 2), learner.new("NgramDrafter", 1, 2)
    one.extend([1, 2, 3])
    two.extend([9, 1])
    one.extend([1])
    found = one.propose(2), two.propose(2)
    if found != ([2, 3], []):
        raise Failed(
            f"the drafts are {found[0]} and {found[1]}; expected [2, 3] and []",
            example="one.extend([1, 2, 3]); two.extend([9, 1]); one.extend([1]); one.propose(2); two.propose(2)",
        )


@check(LAB)
def bad_sizes_are_refused(learner: Learner) -> None:
    """min_n below 1 and max_n below min_n raise ValueError."""
    for min_n, max_n in ((0, 3), (-1, 2), (3, 2)):
        refused(f"NgramDrafter({min_n}, {max_n})", learner.new, "NgramDrafter", min_n, max_n)


@check(LAB)
def random_texts(learner: Learner) -> None:
    """300 random texts in random pieces, both rules: every proposal is that of a search at every place."""
    rng = Random(23)

    def run(case: int) -> None:
        letters, first = 1 + case % 5, case % 3 == 0
        text = [rng.randrange(letters) for _ in range(1 + case // 8)]
        min_n = rng.randint(1, 3)
        max_n, k = min_n + rng.randint(0, 3), rng.randint(1, 6)
        pieces: list[Sequence[int]] = []
        at = 0
        while at < len(text):
            size = rng.randint(1, 4)
            pieces.append(text[at : at + size])
            at += size
        run_fewest(pieces, lambda some: compare(learner, some, min_n, max_n, k, first))

    smallest(range(300), run)


SIZES = (1_200, 38_400)
"""Tokens of a short and of a long text."""


def texts(context: str, length: int) -> list[int]:
    """Return tokens that are all new, or a frequent pair after a token that is new."""
    triples = (
        (3 * at, 3 * at + 1, 3 * at + 2) if context == "new" else (at + 2, 0, 1) for at in range(length // 3)
    )
    return [token for triple in triples for token in triple]


@check(LAB)
def a_step_costs_the_same_in_a_long_text(learner: Learner) -> None:
    """`extend` by three tokens and `propose` work as much after 1,200 tokens as after 38,400: no search, no copy."""
    for context in ("new", "common ending"):

        def work_at(length: int, context: str = context) -> list[list[int]]:
            drafter, text = learner.new("NgramDrafter", 2, 4, False), texts(context, length + 24)
            steps = [(("extend", text[at : at + 3]), ("propose", 5)) for at in range(length, length + 24, 3)]
            work = learner.costs(
                drafter, [("extend", text[:length]), *(call for step in steps for call in step)], 16
            )
            return [work[::2], work[1::2]]

        shown = "tokens, all of them new" if context == "new" else "tokens: x, 0, 1, y, 0, 1 with new x, y"
        for place, contract in enumerate(
            (
                "extend: at most O(max_n) dict operations per token",
                "propose: its cost does not depend on the text",
            )
        ):

            def work_of(length: int, work_at: Any = work_at, place: int = place) -> list[int]:
                work: list[list[int]] = work_at(length)
                return work[place]

            constant(work_of, contract, shown, SIZES)


# -- the engine


class LabDrafter:
    """A learner's drafters behind the engine's seam: one for each state slot."""

    learner: Learner | None = None
    """Source of the class; the engine makes this drafter by its name."""
    told: list[tuple[list[int], int, list[int]]] = []
    """(text, most, drafts) of every proposal."""

    def __init__(self, context: DrafterContext) -> None:
        self.sizes = context.config.prompt_lookup_min, context.config.prompt_lookup_max
        self.drafters: dict[int, Any] = {}
        self.lengths: dict[int, int] = {}

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        assert LabDrafter.learner is not None
        self.drafters[slot], self.lengths[slot] = LabDrafter.learner.new("NgramDrafter", *self.sizes), 0

    def remove_request(self, slot: int) -> None:
        del self.drafters[slot], self.lengths[slot]

    def propose(self, step: DraftStep) -> list[list[int]]:
        rows = zip(step.slots.tolist(), step.lengths.tolist(), step.max_drafts, strict=True)
        return [self._propose(step.token_ids[slot], slot, length, most) for slot, length, most in rows]

    def _propose(self, line: np.ndarray, slot: int, length: int, most: int) -> list[int]:
        if not most:
            return []
        drafter, known = self.drafters[slot], self.lengths[slot]
        drafter.extend(line[known:length].tolist())
        self.lengths[slot] = length
        drafts = drafter.propose(most)
        LabDrafter.told.append((line[:length].tolist(), most, drafts))
        return drafts if isinstance(drafts, list) and all(type(each) is int for each in drafts) else []


PROMPTS = (
    "Silver Harbor costs 620 yen. How much is Silver Harbor? Silver Harbor costs",
    "one two three four one two three four one two",
    "The shop ships to Tokyo. The shop ships to Osaka. The shop ships",
)


def answers(method: str) -> list[list[int]]:
    """Serve the prompts with a drafter; return the tokens of each."""
    drafts = {
        "method": method,
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    }
    with LLM("shop", speculative_config=drafts) as llm:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        return [list(each.outputs[0].token_ids) for each in llm.generate(list(PROMPTS), params)]


@check(LAB)
def the_engine_drafts_with_it(learner: Learner) -> None:
    """The engine serves three prompts with the shop model: each proposal is that of its own drafter."""
    LabDrafter.learner, LabDrafter.told = learner, []
    yours = None
    try:
        with quiet_engine():
            yours = answers(f"{__name__}:LabDrafter")
    except EngineDeadError as dead:
        if isinstance(dead.__cause__, (Failed, GuestError, GuestStopped)):
            raise dead.__cause__ from None
    finally:
        LabDrafter.learner = None
    for text, most, drafts in LabDrafter.told:
        ours = continuation(np.array(text, np.int32), 1, 3, most)
        if drafts != ours:
            raise Failed(
                f"the drafts are {drafts!r}; the engine's own are {ours}",
                example=f"extend({text}); propose({most})",
            )
    if yours != answers("ngram") or not any(drafts for _, _, drafts in LabDrafter.told):
        raise Failed("the text differs from that with the engine's drafter")
