"""Checks of lesson 05: padded and packed batches."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from lessons.course.checking import Failed, Learner, check, refused, smallest

PAD = 99
BATCHES: tuple[list[list[int]], ...] = (
    [[5]],
    [[5], [6, 7]],
    [[1, 2, 3], [4]],
    [[1, 2], [], [3, 4, 5]],
    [[7] * 9, [8, 9], [1, 2, 3, 4]],
)


def padded(learner: Learner, batch: list[list[int]], side: str) -> tuple[Any, Any, Any]:
    found = learner.call("pad_batch", batch, PAD, side)
    if not isinstance(found, tuple) or len(found) != 3 or any(not isinstance(part, list) for part in found):
        raise Failed(f"the result is {found!r}; expected a tuple of three lists")
    for name, part in zip(("ids", "mask", "positions"), found, strict=True):
        if len(part) != len(batch):
            raise Failed(f"{name} has {len(part)} rows; the batch has {len(batch)}")
    return found


def on_both_sides(run: Callable[[list[list[int]], str], None]) -> None:
    smallest([(batch, side) for batch in BATCHES for side in ("left", "right")], lambda case: run(*case))


def column_of(batch: list[list[int]], row: int, index: int, side: str) -> int:
    """Column of token `index` of a row, counted from the end for left padding."""
    longest = max(len(each) for each in batch)
    return index if side == "right" else longest - (len(batch[row]) - index)


@check("05.1")
def rows_are_as_wide_as_the_longest(learner: Learner) -> None:
    """Every row of ids, mask and positions is as long as the longest sequence."""

    def run(batch: list[list[int]], side: str) -> None:
        longest = max(len(each) for each in batch)
        for name, part in zip(("ids", "mask", "positions"), padded(learner, batch, side), strict=True):
            widths = [len(row) for row in part]
            if set(widths) != {longest}:
                raise Failed(f"rows of {name} have lengths {widths}, expected {longest} each")

    on_both_sides(run)


@check("05.1")
def padding_is_on_its_side(learner: Learner) -> None:
    """Tokens keep their order; padding stands on the side that was asked for."""

    def run(batch: list[list[int]], side: str) -> None:
        ids, _, _ = padded(learner, batch, side)
        longest = max(len(each) for each in batch)
        for row, own in enumerate(batch):
            expected = [PAD] * longest
            for index, token in enumerate(own):
                expected[column_of(batch, row, index, side)] = token
            if ids[row] != expected:
                raise Failed(f"row {row} of ids is {ids[row]}, expected {expected}")

    on_both_sides(run)


def expect_mask(learner: Learner, batch: list[list[int]], side: str) -> None:
    _, mask, _ = padded(learner, batch, side)
    longest = max(len(each) for each in batch)
    for row, own in enumerate(batch):
        columns = {column_of(batch, row, index, side) for index in range(len(own))}
        expected = [column in columns for column in range(longest)]
        if mask[row] != expected:
            raise Failed(f"row {row} of mask is {mask[row]}, expected {expected}")


@check("05.1")
def the_mask_marks_own_tokens(learner: Learner) -> None:
    """mask is True for tokens of the sequence and False for padding."""
    on_both_sides(lambda batch, side: expect_mask(learner, batch, side))


@check("05.1")
def own_pad_tokens_stay_visible(learner: Learner) -> None:
    """A token of the sequence that equals pad_id is not padding (models often pad with an end token)."""
    cases = [([[PAD]], "left"), ([[PAD, 1], [2]], "left"), ([[1, PAD], [PAD], [1, PAD, 2]], "right")]
    smallest(cases, lambda case: expect_mask(learner, *case))


@check("05.1")
def positions_begin_at_the_first_own_token(learner: Learner) -> None:
    """Positions count a row's own tokens from 0, wherever the padding is; padding has position 0."""

    def run(batch: list[list[int]], side: str) -> None:
        _, _, positions = padded(learner, batch, side)
        for row, own in enumerate(batch):
            expected = [0] * max(len(each) for each in batch)
            for index in range(len(own)):
                expected[column_of(batch, row, index, side)] = index
            if positions[row] != expected:
                raise Failed(f"row {row} of positions is {positions[row]}, expected {expected}")

    on_both_sides(run)


@check("05.1")
def an_unknown_side_is_refused(learner: Learner) -> None:
    """A side other than left and right raises ValueError."""
    for side in ("", "middle", "Left"):
        refused(f"side={side!r}", learner.call, "pad_batch", [[1], [2, 3]], PAD, side)


@check("05.1")
def an_empty_batch_is_empty(learner: Learner) -> None:
    """A batch without sequences gives three empty lists."""
    found = learner.call("pad_batch", [], PAD, "left")
    if found != ([], [], []):
        raise Failed(f"returned {found!r}, expected ([], [], [])", example="pad_batch([], 99, 'left')")


@check("05.1")
def arguments_stay(learner: Learner) -> None:
    """The sequences themselves are not changed."""
    batch = [[1], [2, 3, 4]]
    kept = learner.put(batch)
    learner.call("pad_batch", kept, PAD, "right")
    if learner.call("pad_batch", kept, PAD, "right")[1][0] != [True, False, False]:
        raise Failed("a second call finds the first sequence padded", example=batch)


KEYS = ("prefill_used", "prefill_padded", "decode_used", "decode_padded")
Batch = tuple[list[int], list[int]]


def counted(batch: Batch) -> dict[str, int]:
    """Walk over the batch position by position."""
    prompts, outputs = batch
    counts = dict.fromkeys(KEYS, 0)
    for column in range(max(prompts, default=0)):
        for length in prompts:
            counts["prefill_used" if column < length else "prefill_padded"] += 1
    written = [1] * len(outputs)
    while any(now < length for now, length in zip(written, outputs, strict=True)):
        for row, length in enumerate(outputs):
            counts["decode_used" if written[row] < length else "decode_padded"] += 1
            written[row] += 1
    return counts


def expect_counts(learner: Learner, cases: list[Batch], keys: tuple[str, ...] = KEYS) -> None:
    def run(batch: Batch) -> None:
        found, expected = learner.call("padding_waste", *batch), counted(batch)
        if not isinstance(found, dict) or set(found) != set(KEYS):
            raise Failed(f"returned {found!r}; expected a dict of {', '.join(KEYS)}")
        for key in keys:
            if type(found[key]) is not int or found[key] != expected[key]:
                raise Failed(f"{key} is {found[key]!r}, expected {expected[key]}")

    smallest(cases, run)


@check("05.2")
def prompts_form_a_rectangle(learner: Learner) -> None:
    """The prefill computes rows x longest prompt; what no prompt fills is padding."""
    cases = [([3], [1]), ([4, 4], [1, 1]), ([2, 5], [1, 1]), ([1, 1, 10], [1, 1, 1])]
    expect_counts(learner, cases, KEYS[:2])


@check("05.2")
def the_first_token_comes_from_the_prefill(learner: Learner) -> None:
    """The prefill yields each row's first token: n tokens take n - 1 decode positions."""
    expect_counts(learner, [([3], [1]), ([3], [4]), ([2, 5], [6, 6])], KEYS[2:])


@check("05.2")
def the_batch_lasts_as_long_as_its_longest_output(learner: Learner) -> None:
    """All rows are computed until the longest output is complete."""
    expect_counts(learner, [([1, 1], [1, 2]), ([2, 2], [2, 5]), ([4, 4, 4], [1, 8, 3])], KEYS[2:])


@check("05.2")
def different_lists_are_refused(learner: Learner) -> None:
    """Lists of different lengths raise ValueError."""
    for case in (([1, 2], [3]), ([1], [2, 3]), ([], [1])):
        refused(case, learner.call, "padding_waste", *case)


@check("05.2")
def an_empty_batch_costs_nothing(learner: Learner) -> None:
    """A batch without requests computes nothing."""
    expect_counts(learner, [([], [])])


@check("05.2")
def random_batches_agree(learner: Learner) -> None:
    """200 random batches agree with a walk over all positions."""
    rng = Random(52)
    cases = []
    for index in range(200):
        rows = 1 + index // 25
        cases.append(tuple([rng.randint(1, 20) for _ in range(rows)] for _ in range(2)))
    expect_counts(learner, cases)  # type: ignore[arg-type]


STEPS: list[Batch] = [
    ([1], [0]),
    ([3], [0]),
    ([2, 3], [0, 0]),
    ([1, 1, 1], [9, 4, 30]),
    ([1, 4, 2], [12, 0, 5]),
    ([5, 1, 3, 2], [0, 7, 16, 0]),
]


def packed(learner: Learner, step: Batch) -> tuple[list[int], list[int], list[int]]:
    found = learner.call("pack", *step)
    if not isinstance(found, tuple) or len(found) != 3 or any(not isinstance(part, list) for part in found):
        raise Failed(f"the result is {found!r}; expected a tuple of three lists")
    return found


def expect_packed(learner: Learner, cases: list[Batch], parts: tuple[str, ...]) -> None:
    """Compare with a step that is packed one token after the other."""

    def run(step: Batch) -> None:
        expected: dict[str, list[int]] = {"query_start_loc": [0], "positions": [], "row_of_token": []}
        for row, (length, start) in enumerate(zip(*step, strict=True)):
            position = start
            while position < start + length:
                expected["positions"].append(position)
                expected["row_of_token"].append(row)
                position += 1
            expected["query_start_loc"].append(len(expected["positions"]))
        for name, part in zip(expected, packed(learner, step), strict=True):
            if name in parts and part != expected[name]:
                raise Failed(f"{name} is {part}, expected {expected[name]}")

    smallest(cases, run)


@check("05.3")
def starts_are_running_sums(learner: Learner) -> None:
    """query_start_loc has rows + 1 entries: where each row begins, and where the last one ends."""
    expect_packed(learner, STEPS, ("query_start_loc",))


@check("05.3")
def positions_restart_in_every_row(learner: Learner) -> None:
    """A token's position is its place in its own sequence, not in the step."""
    expect_packed(learner, [([2, 2], [0, 0]), ([3, 1, 2], [0, 0, 0])], ("positions",))


@check("05.3")
def positions_go_on_after_computed_tokens(learner: Learner) -> None:
    """The first position of a row is the number of its tokens computed before: decodes and later chunks."""
    expect_packed(learner, [([1], [5]), ([2, 1], [4, 0]), *STEPS], ("positions",))


@check("05.3")
def each_token_knows_its_row(learner: Learner) -> None:
    """row_of_token names the row of each token, from 0."""
    expect_packed(learner, STEPS, ("row_of_token",))


@check("05.3")
def rows_may_be_empty(learner: Learner) -> None:
    """A row without tokens keeps its index and has equal entries in query_start_loc; a step may have no rows."""
    cases: list[Batch] = [([], []), ([0], [3]), ([2, 0, 1], [0, 6, 4]), ([0, 0, 3], [1, 2, 3])]
    expect_packed(learner, cases, ("query_start_loc", "positions", "row_of_token"))


@check("05.3")
def lengths_and_starts_must_match(learner: Learner) -> None:
    """Lists of different lengths raise ValueError."""
    for case in (([1, 2], [0]), ([1], [0, 0])):
        refused(case, learner.call, "pack", *case)
