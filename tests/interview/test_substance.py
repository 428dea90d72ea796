"""Prose that says nothing: repetitions, echoes, terms without a statement."""

from itertools import combinations
from random import Random

import pytest

from interview.mock.assessment import UNSUPPORTED, supported
from interview.mock.denying import is_denial
from interview.mock.drawn import draw_scenario
from interview.mock.evidence import Evidence, Kind
from interview.mock.prose import FAR, NAMED, TURNED, doubts, of_prose
from interview.mock.scenario_list import load_scenarios
from interview.mock.substance import SHORT, explains, is_echo, makes_a_point, once
from interview.mock.talk import Asked
from quizzes.free_text.sentences import sentences
from quizzes.question import KeyPoint
from tests.interview.cheaters import FRAMES, denied, filled
from tests.interview.helpers import start
from tests.interview.strangers import ATTACKS, MANNERS, Say

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
            1,
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
    ("kind", "value"),
    [("option", UNSUPPORTED), ("number", UNSUPPORTED), ("program", 4.5), ("design", 4.5), ("incident", 4.5)],
)
def test_no_program_no_design_and_no_solved_incident_is_a_guess(kind: Kind, value: float) -> None:
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


CAPACITY = [
    KeyPoint(id=name, say=say, must=True, good=[say], bad=[bad])
    for name, say, bad in (
        (
            "peak",
            "Turn users into requests per second at peak: users x active share / interval.",
            "Size for the mean.",
        ),
        (
            "spare",
            "Leave headroom for queueing, and check failures: the rest must carry the peak.",
            "Run at 100 %.",
        ),
        ("reuse", "Prefix caching takes the system prompt out of prefill.", "Ignore prefix caching."),
    )
]
DENIED = (
    "I would never say that 1,920 people are active, and I deny that 1,920 / 60 = 32 requests per second arrive at "
    "peak. It is not 800 prompt tokens, not 25,600 prompt tokens per second. KV is not 128 KiB per token. Prefix "
    "caching must be ignored. Do not measure p95 nor p99, do not leave headroom, do not check failures. Bananas."
)
AFFIRMED = (
    "There are 1,920 people active, not 24,000, so 32 requests per second arrive at peak. No request may wait for "
    "long, so leave headroom for queueing and check failures, and never run at 100 %. Prefix caching takes the 300 "
    "tokens of the system prompt out of prefill, so do not ignore prefix caching. I "
    "would size decode from the output tokens, 32 times 200 a second, "
    "and check the floor of a step against the bandwidth of the card."
)


def judged(text: str) -> dict[str, Evidence]:
    points = {point.id: "hit" for point in CAPACITY}
    found = of_prose(
        text, CAPACITY, points, {"peak": [True, True]}, ["mechanism", "communication"], "s/x",
        clarified=0, lo=60, hi=150, seconds=60.0, minutes=3.0,
    )  # fmt: skip
    return {each.axis: each for each in found}


def test_an_answer_that_denies_what_it_says_explains_nothing_whatever_its_marks_and_probes_say() -> None:
    found = judged(DENIED)
    assert (found["mechanism"].value, found["communication"].value) == (1.0, 2.0)
    assert "it denies most of what it says" in found["mechanism"].why
    assert not makes_a_point(DENIED, CAPACITY, "") and not explains(DENIED, 60)


def test_negations_within_a_right_answer_cost_nothing() -> None:
    found = judged(AFFIRMED)
    assert (found["mechanism"].value, found["communication"].value) == (5.0, 4.0)
    assert makes_a_point(AFFIRMED, CAPACITY, "") and explains(AFFIRMED, 60)


def test_admitting_ignorance_is_no_denial() -> None:
    assert not is_denial(
        "I don't know how this works inside. I would measure the load first, because without it I could only guess. "
        "I do not know the rate, and I am not sure about the cache. Until then I would change nothing."
    )


def test_a_hit_does_not_count_if_the_closest_sentence_denies_the_point() -> None:
    turned = AFFIRMED.replace("leave headroom for queueing and", "do not leave headroom for queueing, never")
    found = judged(turned)["mechanism"]
    assert found.value < 5.0 and "own marks 3 of 3, but the answer denies 1 of them" in found.why


def test_a_hit_counts_only_for_a_point_that_some_sentence_comes_near() -> None:
    found = judged(f"{CAPACITY[0].say} {AFFIRMED.partition('Prefix')[0]}")["mechanism"]
    assert found.value < 5.0 and "own marks 3 of 3, but no sentence is near 1 of them" in found.why
    assert doubts(CAPACITY[0].say, CAPACITY) == {"spare": FAR, "reuse": FAR}
    assert (
        doubts("I deny that prefix caching takes the system prompt out of prefill.", CAPACITY)["reuse"]
        == TURNED
    )


def test_who_takes_a_wrong_beginning_back_denies_nothing() -> None:
    said = [f"{point.bad[0]} No, wait, that is wrong: {point.say}" for point in CAPACITY]
    assert doubts(" ".join(said), CAPACITY) == {}
    assert judged(" ".join(said))["mechanism"].value == 5.0


STEPS = [
    (draw_scenario(load_scenarios().scenario(entry.id), 3), step.id)
    for entry in load_scenarios()
    for step in load_scenarios().scenario(entry.id).steps
    if step.form == "prose"
]
LUCKIEST = {"foreigner": 4, "swapper": 1}
"""Scenarios in which an attack may earn more than NAMED: its sentences are true ones about something near,
or points with one word turned, and some points have no such word."""


def earned(say: Say, *, marked: int | None = None) -> list[tuple[float, float]]:
    """Return (mechanism, communication) of prose in every scenario, if all probes are right. marked: number of required
    points that are marked as hits; all points by default."""
    found = []
    for drawn, name in STEPS:
        step = drawn.scenario.step(name)
        points = drawn.key_points(step)
        hits = points if marked is None else [point for point in points if point.must][:marked]
        by_axis = of_prose(
            say(drawn, step, Random(name)), points, {point.id: "hit" for point in hits},
            {point.id: [True] * len(point.probes) for point in points if point.probes},
            ["mechanism", "communication"], "s/x", clarified=0, lo=60, hi=200, seconds=60.0, minutes=5.0,
            said=f"{drawn.scenario.title} {drawn.text(drawn.scenario.brief)} {drawn.wording(step)}",
        )  # fmt: skip
        found.append((by_axis[0].value, by_axis[1].value))
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_prose_of_an_attacker_earns_no_more_than_a_name_even_if_every_probe_is_right(name: str) -> None:
    found = earned(ATTACKS[name][1])
    above = [values for values in found if max(values) > NAMED]
    assert len(above) <= LUCKIEST.get(name, 0)


@pytest.mark.parametrize(
    ("name", "least", "marked"),
    [
        ("learner", 4.0, 9),
        ("corrector", 4.0, 9),
        ("myth-buster", 4.0, 9),
        ("terse", 4.0, 9),
        ("measurer", 3.0, 1),
    ],
)
def test_honest_prose_earns_what_it_says_in_whatever_manner(name: str, least: float, marked: int) -> None:
    found = earned(MANNERS[name][1], marked=marked)
    below = [values for values in found if values[0] < least or values[1] < 3.0]
    assert len(below) <= 2, "of 41, in which it is shorter than an explanation"


def test_no_key_point_of_a_scenario_reads_as_denied_and_a_denial_of_it_does() -> None:
    scenarios = load_scenarios()
    for name in scenarios.entries:
        for step in scenarios.scenario(name).steps:
            if required := [point.say for point in step.keypoints if point.must]:
                assert not is_denial(". ".join(required)), (name, step.id)
                assert not is_denial(step.five), (name, step.id)
                assert is_denial(denied(required), step.keypoints), (name, step.id)
                assert doubts(" ".join(f"{each}." for each in required), step.keypoints).keys() <= {
                    point.id for point in step.keypoints if not point.must
                }, (name, step.id)


def test_key_points_that_deny_something_are_no_denial_one_by_one_or_in_pairs() -> None:
    """No answer has to make all points."""
    scenarios = load_scenarios()
    for name in scenarios.entries:
        for step in scenarios.scenario(name).steps:
            said = [phrasing for point in step.keypoints for phrasing in (point.say, *point.good)]
            pairs = [f"{one} {other}" for one, other in combinations(said, 2)]
            assert not [text for text in said + pairs if is_denial(text, step.keypoints)], (name, step.id)


def test_a_statement_of_a_point_that_denies_something_may_use_other_words() -> None:
    step = load_scenarios().scenario("platform.forty_adapters").steps
    points = [point for each in step for point in each.keypoints]
    right = "The prefix cache is keyed by adapter, so the KV of one customer can never be reused for another."
    assert is_denial(right) and not is_denial(right, points)
    assert is_denial(f"I would never say that {right}", points)
