"""Prose that says nothing: repetitions, echoes, terms without a statement."""

import pytest

from interview.mock.assessment import UNSUPPORTED, supported
from interview.mock.evidence import Evidence, Kind
from interview.mock.prose import NAMED, of_prose
from interview.mock.substance import SHORT, explains, is_echo, makes_a_point, once
from interview.mock.talk import Asked
from quizzes.free_text.sentences import sentences
from quizzes.question import KeyPoint
from tests.interview.cheaters import FRAMES, filled
from tests.interview.helpers import start

POINTS = [
    KeyPoint(
        id="a",
        say="When no block is free, the scheduler preempts the request that came last.",
        must=True,
        good=["the youngest request loses its blocks"],
        bad=["all go on"],
    )
]
SAID = "Streams stall when the pool of blocks is full. Why?"
TERMS = (
    "scheduler preempts request came last block free pool tail queue batch youngest loses tokens memory admits stream "
    "stall cache prefix router replica worker step"
).split()
STUFFED = filled(FRAMES["stuffing"], TERMS)


@pytest.mark.parametrize("frames", FRAMES.values(), ids=FRAMES)
def test_sentences_filled_with_term_after_term_are_one_sentence(frames: tuple[str, ...]) -> None:
    stuffed = filled(frames, TERMS)
    assert len(stuffed.split()) > SHORT
    assert once(stuffed) == sentences(stuffed)[0] and not explains(stuffed, len(stuffed.split()))
    assert not makes_a_point(stuffed, POINTS, SAID)
    assert makes_a_point(f"{stuffed} {POINTS[0].say}", POINTS, SAID), "beside a point that is made"


def test_a_repeated_sentence_counts_once_and_different_ones_stay() -> None:
    assert once("A block is free. A block is free.") == "A block is free."
    different = (
        "Blocks run out. Requests wait. The one that came last is preempted, and it is computed again."
    )
    assert once(different) == different
    honest = (
        "I do not know what it does then. I would measure the free blocks before I change anything. It may be that it "
        "has to wait for them. Then the queue grows, and a stream stalls until one of the others is over."
    )
    assert once(honest) == honest


def test_each_sentence_is_compared_with_few_others() -> None:
    """A comparison of all pairs of 60,000 sentences of one word would take minutes."""
    assert len(once(" ".join(f"w{n}." for n in range(60_000))).split()) == 60_000


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "If the pool is full, the scheduler preempts the last request. If the queue is long, the router moves the "
            "new one. If the link is slow, the worker keeps the blocks.",
            3,
        ),
        ("If the pool is full, the scheduler preempts. If the queue is long, the scheduler admits.", 2),
        (
            "If the pool is full, the scheduler preempts. If the pool is full, then the scheduler preempts. If the "
            "pool is low, the scheduler preempts.",
            2,
        ),
        (
            " ".join(
                f"The {one} uses the block{one} in the {one}s." for one in ("cache", "pool", "tail", "queue")
            ),
            1,
        ),
    ],
)
def test_parallel_sentences_about_different_things_are_no_repetition(text: str, kept: int) -> None:
    assert len(sentences(once(text))) == kept


def test_an_echo_is_most_of_what_was_said_before() -> None:
    assert is_echo(f"{SAID} {SAID}", SAID)
    assert not is_echo(POINTS[0].say, SAID)
    assert not is_echo("", "") and not is_echo("Yes.", "Yes.")


@pytest.mark.parametrize(
    ("text", "makes"),
    [
        ("The scheduler preempts the request that came last.", True),
        ("I think that the youngest one loses its blocks then.", True),
        (STUFFED, False),
        (SAID, False),
        ("I do not know. I would measure the free blocks before I change anything.", False),
        (
            "scheduler, preempts, request, block, free, last, youngest, blocks, pool, tail, queue, batch",
            False,
        ),
    ],
)
def test_a_point_is_made_by_a_sentence_near_it_with_a_word_that_was_not_said_before(
    text: str, makes: bool
) -> None:
    assert makes_a_point(text, POINTS, SAID) is makes


@pytest.mark.parametrize(
    ("makes_a_point", "number", "value"), [(False, 2.0, UNSUPPORTED), (True, 2.0, 5.0), (False, 5.0, 5.0)]
)
def test_right_options_count_only_beside_an_explanation_or_right_numbers(
    makes_a_point: bool, number: float, value: float
) -> None:
    with start() as session:
        talk = session.talk
    talk.asked.append(Asked("s/why", "core", "prose", "", 3.0, makes_a_point=makes_a_point))
    talk.evidence = [
        Evidence("diagnosis", 5.0, "right", "s/option", kind="option"),
        Evidence("correctness", number, "a number", "s/number", kind="number"),
        Evidence("communication", 4.0, "72 words", "s/why"),
    ]
    assert [each.value for each in supported(talk)] == [value, number, 4.0]


@pytest.mark.parametrize(
    ("more", "value"),
    [
        (Evidence("quantification", 2.0, "no interval", "s/number", kind="number"), 5.0),
        (Evidence("correctness", 1.0, "it says nothing", "s/why"), 5.0),
        (Evidence("correctness", 1.0, "2 of 4 goals met", "s/canvas", kind="design"), 5.0),
        (Evidence("correctness", 1.0, "0 of 10 checks pass", "s/code", kind="program"), UNSUPPORTED),
    ],
)
def test_a_step_is_right_by_its_best_number_and_only_numbers_and_programs_count(
    more: Evidence, value: float
) -> None:
    with start() as session:
        talk = session.talk
    talk.asked.append(Asked("s/why", "core", "prose", "", 3.0))
    number = Evidence("correctness", 5.0, "a number", "s/number", kind="number")
    talk.evidence = [number, more, Evidence("diagnosis", 5.0, "right", "s/option", kind="option")]
    assert supported(talk)[-1].value == value


@pytest.mark.parametrize(("all_right", "value"), [(True, 4.0), (False, UNSUPPORTED), (None, UNSUPPORTED)])
def test_a_right_number_without_an_interval_is_no_guess(all_right: bool | None, value: float) -> None:
    with start() as session:
        talk = session.talk
    talk.asked = [
        Asked("s/why", "core", "prose", "", 3.0),
        Asked("s/x", "probe", "ask", "", 1.0, all_right=all_right),
    ]
    wrong = [Evidence("correctness", 1.0, "a number", f"s/{n}", kind="number") for n in range(2)]
    talk.evidence = [*wrong, Evidence("quantification", 4.0, "said 100", "s/x", kind="number")]
    assert supported(talk)[-1].value == value


@pytest.mark.parametrize(
    ("kind", "value"), [("option", UNSUPPORTED), ("number", UNSUPPORTED), ("program", 4.5), ("design", 4.5)]
)
def test_no_program_and_no_design_is_a_guess(kind: Kind, value: float) -> None:
    with start() as session:
        talk = session.talk
    talk.asked.append(Asked("s/why", "core", "prose", "", 3.0))
    wrong = [Evidence("correctness", 1.0, "a number", f"s/{n}", kind="number") for n in range(2)]
    talk.evidence = [*wrong, Evidence("tradeoffs", 4.5, "after 4 tries", "s/x", kind=kind)]
    assert supported(talk)[-1].value == value


@pytest.mark.parametrize(("right", "value"), [(True, 3), (False, NAMED)])
def test_sentences_that_come_near_no_point_are_understandable_only_if_their_follow_ups_are_right(
    right: bool, value: float
) -> None:
    text = (
        "The scheduler admits each request while the memory lasts, and latency follows the queue of the server. A "
        "batch grows with load and a block holds tokens, so that free space shrinks during the day."
    )
    assert not makes_a_point(text, POINTS, SAID)
    found = of_prose(
        text, POINTS, {}, {"a": [right]}, ["communication"], "s/x",
        clarified=0, lo=60, hi=150, seconds=60.0, minutes=3.0, said=SAID,
    )  # fmt: skip
    assert [each.value for each in found] == [value]
