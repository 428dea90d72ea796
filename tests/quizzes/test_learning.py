"""Values derived from the facts: ratings, intervals, what comes next, calibration, placement, readiness, the plan."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from fsrs import Card as FsrsCard
from fsrs import Rating
from hypothesis import given
from hypothesis import strategies as st

from quizzes.learning import calibration as calibrating
from quizzes.learning.calibration import OwnMarks, calibration, intervals, own_marks
from quizzes.learning.placement import ITEMS, Placement
from quizzes.learning.plan import LAST_DAYS, REVIEW_TIME, as_laid_out, plan
from quizzes.learning.progress import progress, strength
from quizzes.learning.review import (
    AGAIN,
    EASY,
    GOOD,
    HARD,
    LAST_REVIEW_DAYS,
    LEECH,
    before_interview,
    cards,
    rate,
    replay,
    scheduler,
)
from quizzes.learning.selection import due, pick
from quizzes.question_bank import Bank, Entry
from quizzes.state import Attempt, IntervalForecast, KeypointMark, State, Vote
from tests.counting import instructions
from tests.quizzes import plan_simulation
from tests.quizzes.plan_simulation import TRUTHS, interval, mean_recalled, policies

NOW = dt.datetime(2026, 3, 2, 9, tzinfo=dt.UTC)
TOPICS = ("memory", "batching", "scheduling", "lora", "sampling", "capacity", "attention")


def day(count: float) -> dt.datetime:
    return NOW + dt.timedelta(days=count)


def entry(question_id: str, difficulty: int = 2, **more: object) -> Entry:
    values = {"title": question_id, "kind": "numeric", "stage": "technical", "roles": ("inference", "sre")}
    values |= {"minutes": 3.0, "covers": (), "status": "stable", "revision": 1, "needs_probes": ()}
    return Entry(id=question_id, difficulty=difficulty, **{**values, **more})


def bank(*entries: Entry) -> Bank:
    return Bank({found.id: found for found in entries}, [], {})


BANK = bank(*(entry(f"{topic}.q{d}{n}", d) for topic in TOPICS for d in (1, 2, 3, 4, 5) for n in (0, 1)))


@pytest.fixture
def state() -> State:
    with State.in_memory() as opened:
        yield opened


def answer(
    state: State,
    question: str,
    at: dt.datetime,
    *,
    rating: int | None = GOOD,
    confidence: int | None = None,
    **more: object,
) -> Attempt:
    session = state.begin_session("quiz")
    right = rating is not None and rating > AGAIN
    values = {
        "points": float(right),
        "points_max": 1.0,
        "correct": right,
        "grader": "exact",
        "rating": rating,
    }
    return state.add(
        Attempt(
            session.id,
            question,
            1,
            answer={},
            **{"seed": 5, **values, "confidence": confidence, "at": at, **more},
        )
    )


# ratings


@pytest.mark.parametrize(
    ("given", "rating"),
    [
        ({"correct": False, "fraction": 0.0}, AGAIN),
        ({"correct": False, "fraction": 0.59}, AGAIN),
        ({"correct": False, "fraction": 0.6}, HARD),
        ({"correct": True, "hints": 1}, HARD),
        ({"correct": True, "hints": 1, "confidence": 99, "seconds": 1.0}, HARD),
        ({"correct": True, "seconds": 361.0}, HARD),
        ({"correct": True, "seconds": 360.0}, GOOD),
        ({"correct": True, "confidence": 85, "seconds": 89.0}, EASY),
        ({"correct": True, "confidence": 84, "seconds": 89.0}, GOOD),
        ({"correct": True, "confidence": 99, "seconds": 90.0}, GOOD),
        ({"correct": True, "confidence": None, "seconds": 1.0}, GOOD),
        ({"correct": False, "fraction": 0.0, "confidence": 99, "seconds": 1.0}, AGAIN),
    ],
)
def test_the_rating_follows_from_the_answer(given: dict[str, object], rating: int) -> None:
    usual = {"fraction": 1.0, "hints": 0, "seconds": 120.0, "minutes": 3.0, "confidence": 60}
    assert rate(**{**usual, **given}) == rating


@given(st.floats(0, 1), st.integers(0, 3), st.floats(0, 1e4), st.floats(0, 1e4), st.integers(1, 99))
def test_speed_never_decides_whether_an_answer_counts(
    fraction: float, hints: int, one: float, two: float, confidence: int
) -> None:
    wrong = {"correct": False, "fraction": fraction, "hints": hints, "minutes": 3.0, "confidence": confidence}
    assert rate(**wrong, seconds=one) == rate(**wrong, seconds=two) <= HARD
    assert (
        rate(correct=True, fraction=1, hints=hints, seconds=one, minutes=3.0, confidence=confidence) >= HARD
    )


# cards


def intervals_of(ratings: list[int]) -> list[int]:
    memory, at, found = FsrsCard(card_id=0, due=NOW), NOW, []
    for rating in ratings:
        memory, _ = scheduler().review_card(memory, Rating(rating), at)
        found.append((memory.due - at).days)
        at = memory.due
    return found


def test_intervals_are_those_of_fsrs_6_without_learning_steps() -> None:
    assert intervals_of([GOOD] * 4) == [2, 11, 46, 163]
    assert intervals_of([HARD, GOOD, GOOD]) == [1, 5, 17]
    assert intervals_of([AGAIN]) == [1]


def test_an_unscored_attempt_without_a_rating_moves_no_card(state: State) -> None:
    answer(state, "memory.q10", NOW, rating=None, scored=False)
    assert cards(state) == {}
    answer(state, "memory.q10", NOW)
    before = cards(state)
    unscored = answer(state, "memory.q10", day(1), rating=None, scored=False)
    assert cards(state) == before
    assert replay([unscored], {}, []) == {}


def test_a_solution_that_was_seen_or_a_gap_of_an_interview_brings_the_card_back_without_a_score(
    state: State,
) -> None:
    answer(state, "memory.q10", NOW, rating=AGAIN, scored=False)
    assert cards(state)["memory.q10"].last_rating == AGAIN
    assert not cards(state)["memory.q10"].surprise
    assert state.attempts(scored=True) == []


def test_intervals_shrink_towards_the_interview_and_are_those_of_fsrs_without_it_and_after_it(
    state: State,
) -> None:
    answer(state, "memory.q10", NOW)
    answer(state, "memory.q10", day(2))

    def due_in(interview: int, now: int = 2) -> int:
        state.change_settings(interview_date=day(interview).date())
        return (cards(state, day(now))["memory.q10"].due - day(2)).days

    assert (cards(state, day(2))["memory.q10"].due - day(2)).days == 11
    assert [due_in(each) for each in (100, 24, 22, 14, 8, 6)] == [11, 11, 10, 6, 3, 2]
    assert due_in(2 + LAST_REVIEW_DAYS) == 11, "the last review before the interview"
    assert due_in(14, now=14) == 6 and due_in(14, now=15) == 11


def _rated(rating: int, at: dt.datetime) -> Attempt:
    right = rating > AGAIN
    return Attempt("s", "memory.q10", 1, 1, "", float(right), 1.0, right, "machine", rating=rating, at=at)


@given(st.lists(st.sampled_from((AGAIN, HARD, GOOD, EASY)), max_size=6), st.integers(1, 90))
def test_every_card_is_reviewed_in_the_last_days_before_the_interview(ratings: list[int], left: int) -> None:
    interview, now = day(left).date(), NOW
    facts = [_rated(GOOD, NOW)]
    for rating in [*ratings, *[GOOD] * 90]:
        card = replay(facts, {}, [])["memory.q10"]
        now = before_interview(card, interview).due
        if now.date() >= interview or card.suspended:
            assert card.suspended or (interview - card.last_review.date()).days <= LAST_REVIEW_DAYS
            return
        facts.append(_rated(rating, now))
    raise AssertionError("the intervals do not end")


def test_a_guess_can_be_admitted_but_a_rating_never_raised(state: State) -> None:
    added = answer(state, "memory.q10", NOW, rating=GOOD)
    state.lower_rating(added.id, EASY)
    assert cards(state)["memory.q10"].last_rating == GOOD
    state.lower_rating(added.id, AGAIN)
    card = cards(state)["memory.q10"]
    assert card.last_rating == AGAIN and card.last_fraction == 0 and not card.surprise


def test_four_lapses_suspend_a_card_until_it_is_resumed(state: State) -> None:
    for at in range(LEECH):
        answer(state, "memory.q10", day(at), rating=AGAIN)
    assert not cards(state)["memory.q10"].suspended  # the first Again is no lapse: nothing was known yet
    answer(state, "memory.q10", day(LEECH), rating=AGAIN)
    assert cards(state)["memory.q10"].suspended
    assert due(BANK, state, now=day(60)) == [] and "memory.q10" not in {
        p.id for p in pick(BANK, state, n=500)
    }
    state.resume("memory.q10")
    card = cards(state)["memory.q10"]
    assert not card.suspended and card.lapses == 0


@given(st.permutations(range(8)))
def test_the_order_in_which_facts_arrive_does_not_matter(order: list[int]) -> None:
    facts = [
        Attempt(
            "s",
            f"memory.q{n % 2}",
            1,
            n,
            {},
            1,
            1,
            n != 4,
            "exact",
            rating=1 + n % 4,
            at=day(n),
            id=f"{n:026}",
        )
        for n in range(8)
    ]
    told = [(day(3.5), "memory.q1", "suspend"), (day(5.5), "memory.q1", "resume")]
    lowered = {facts[2].id: AGAIN}
    assert replay([facts[n] for n in order], lowered, reversed(told)) == replay(facts, lowered, told)


def test_kept_cards_equal_replayed_ones_and_are_made_anew_when_a_fact_comes(state: State) -> None:
    rng = Random(1)
    for n in range(60):
        answer(
            state, f"memory.q{rng.randrange(6)}", day(n * 0.7), rating=rng.choice((1, 2, 3, 4)), confidence=90
        )
    replayed = cards(state)
    assert cards(state) == replayed
    state.drop_derived()
    assert cards(state) == replayed
    answer(state, "lora.q10", day(50))
    assert set(cards(state)) == set(replayed) | {"lora.q10"}


def test_the_cost_of_a_review_in_a_replay_does_not_depend_on_their_number() -> None:
    def cost(number: int) -> float:
        rng = Random(2)
        facts = [
            Attempt("s", f"memory.q{rng.randrange(250)}", 1, n, {}, 1, 1, True, "exact", rating=rng.randint(1, 4),
                    at=day(n / 20), id=f"{n:026}")
            for n in range(number)
        ]  # fmt: skip
        return instructions(lambda: replay(facts, {}, [])) / number

    assert cost(6000) < 1.5 * cost(600)


# what comes next


def test_surprises_come_first_then_those_due_longest(state: State) -> None:
    answer(state, "memory.q10", day(-20))
    answer(state, "batching.q10", day(-9))
    answer(state, "lora.q10", day(-3), rating=AGAIN, confidence=60)
    answer(state, "attention.q10", day(-3), rating=HARD)
    answer(state, "capacity.q10", day(-0.01), rating=AGAIN, confidence=95)
    answer(state, "sampling.q10", day(-1), rating=EASY)
    found = due(BANK, state, now=NOW)
    assert [(p.id, p.why) for p in found][0] == ("capacity.q10", "surprise")
    # of the last two, due on one day, the less remembered comes first
    rest = ["memory.q10", "batching.q10", "lora.q10", "attention.q10"]
    assert [p.id for p in found] == ["capacity.q10", *rest]
    assert [p.id for p in due(BANK, state, now=NOW, surprises=True)] == ["capacity.q10"]
    assert {p.id for p in due(BANK, state, now=NOW, missed=True)} == {"capacity.q10", "lora.q10"}
    assert len(due(BANK, state, now=NOW, limit=2)) == 2
    assert "sampling.q10" in {p.id for p in due(BANK, state, now=NOW, ahead_days=40)}


def test_a_partial_answer_given_for_sure_is_a_surprise_too(state: State) -> None:
    answer(state, "memory.q10", NOW, rating=HARD, correct=False, points=0.7, confidence=90)
    assert cards(state)["memory.q10"].surprise and cards(state)["memory.q10"].last_fraction == 0.7


def test_a_surprise_is_cleared_by_the_next_answer(state: State) -> None:
    answer(state, "memory.q10", NOW, rating=AGAIN, confidence=95)
    assert cards(state)["memory.q10"].surprise
    answer(state, "memory.q10", day(0.1))
    assert not cards(state)["memory.q10"].surprise


def test_due_goes_by_the_calendar_of_the_learner(state: State) -> None:
    late = dt.datetime(2026, 3, 2, 23, 30, tzinfo=dt.UTC)
    answer(state, "memory.q10", late, rating=AGAIN)
    assert due(BANK, state, now=late + dt.timedelta(minutes=20)) == []
    assert len(due(BANK, state, now=dt.datetime(2026, 3, 3, 6, tzinfo=dt.UTC))) == 1


def test_cards_of_retired_questions_are_not_asked(state: State) -> None:
    answer(state, "memory.gone", day(-50))
    assert due(BANK, state, now=NOW) == [] and "memory.gone" not in {p.id for p in pick(BANK, state, n=500)}


def test_picking_is_deterministic_and_spreads_over_topics(state: State) -> None:
    first = pick(BANK, state, n=len(TOPICS), seed=3, now=NOW)
    assert first == pick(BANK, state, n=len(TOPICS), seed=3, now=NOW)
    assert {p.entry.topic for p in first} == set(TOPICS) and {p.why for p in first} == {"new"}
    assert first != pick(BANK, state, n=len(TOPICS), seed=4, now=NOW)
    assert sum(p.entry.difficulty for p in first) / len(first) < 3  # the easier ones first


def test_picking_takes_what_is_due_then_new_then_what_is_due_next(state: State) -> None:
    answer(state, "memory.q10", day(-30))
    answer(state, "memory.q11", day(-1), rating=EASY)
    answer(state, "memory.q20", day(-0.1), rating=AGAIN, confidence=95)
    found = pick(BANK, state, topic="memory", n=500, now=NOW)
    assert [p.why for p in found] == ["surprise", "due", *["new"] * 7, "ahead"]
    assert len({p.id for p in found}) == len(found) == 10


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"topic": "lora"}, 10),
        ({"difficulty": 5}, 14),
        ({"role": "sre"}, 70),
        ({"role": "kernel"}, 0),
        ({"stage": "design"}, 0),
        ({"kind": "numeric", "topic": "lora", "difficulty": 1}, 2),
    ],
)
def test_filters_hold(state: State, filters: dict[str, object], count: int) -> None:
    assert len(pick(BANK, state, n=500, **filters)) == count


def test_the_figures_are_never_those_of_the_last_time(state: State) -> None:
    for _ in range(5):
        (asked,) = pick(bank(entry("memory.q10")), state, n=1, seed=3, now=NOW)
        assert asked.seed not in {a.seed for a in state.attempts()[-1:]}
        answer(state, "memory.q10", NOW, seed=asked.seed)


# calibration


def forecast(confidence: int, correct: bool, **more: object) -> Attempt:
    return Attempt("s", "memory.q10", 1, 0, {}, 0, 1, correct, "exact", confidence=confidence, **more)


def test_the_brier_score_is_the_mean_squared_distance() -> None:
    assert calibration([forecast(90, True), forecast(90, False)]).brier == pytest.approx((0.01 + 0.81) / 2)
    assert calibration([forecast(50, True)] * 3).brier == pytest.approx(0.25)
    assert calibration([forecast(90, True, scored=False)]) is None and calibration([]) is None


def test_votes_on_claims_count_once_the_court_has_decided() -> None:
    votes = [
        Vote("S0-01", "refuted", 80),
        Vote("S0-01", "refuted", 80, "refuted"),
        Vote("S0-02", "depends", 60, "refuted"),
    ]
    found = calibration([], votes)
    assert found.n == 2 and found.was == 0.5 and found.brier == pytest.approx((0.04 + 0.36) / 2)


def test_bins_are_shown_only_with_ten_forecasts() -> None:
    found = calibration([forecast(95, n < 6) for n in range(10)] + [forecast(60, True)] * 9)
    assert [(b.lo, b.n) for b in found.bins] == [(90, 10)]
    assert found.bins[0].said == pytest.approx(0.95) and found.bins[0].was == pytest.approx(0.6)
    assert found.n == 19 and found.was == pytest.approx(15 / 19)


def test_the_view_in_the_file_says_the_same_as_the_figures(state: State) -> None:
    for n in range(30):
        answer(state, "memory.q10", day(n), rating=AGAIN if n % 3 else GOOD, confidence=70 + n % 20)
    found = calibration(state.attempts())
    rows = state.connection.execute("SELECT * FROM calibration ORDER BY bin").fetchall()
    assert [row["n"] for row in rows] == [b.n for b in found.bins]
    assert sum(row["brier"] * row["n"] for row in rows) / found.n == pytest.approx(found.brier)


def test_intervals_report_hits_width_and_how_much_to_widen() -> None:
    narrow = [IntervalForecast("a", 9, 11, 10 + n, level=0.8) for n in range(10)]
    (found,) = intervals(narrow)
    assert (found.n, found.hits, found.hit_rate) == (10, 2, 0.2)
    assert found.widen == pytest.approx(7)  # the eighth of ten truths is 7 half-widths away
    assert found.log_width == pytest.approx(0.0872, abs=1e-3)
    assert intervals(narrow[: calibrating.LEAST - 1])[0].widen is None
    assert intervals([IntervalForecast("a", 1, 2, None)]) == ()


def test_own_marks_are_set_beside_the_probes() -> None:
    def marked(own: str, probe: str) -> Attempt:
        return forecast(50, True, marks=(KeypointMark("a", own, "self"), KeypointMark("a", probe, "probe")))

    kind = [marked("hit", "miss")] * 5 + [marked("partial", "hit")] * 5
    assert own_marks(kind) == OwnMarks(10, pytest.approx((5 * 1.0 - 5 * 0.5) / 10))
    assert own_marks(kind[1:]) is None and own_marks([forecast(50, True)]) is None
    assert own_marks([marked("unsure", "hit")] * 20) is None


# placement


def place(level: str | None, knows: int, seed: int = 0) -> Placement:
    """Someone who gets everything right up to a difficulty."""
    placement = Placement(BANK, "inference", level, seed)
    while (asked := placement.next()) is not None:
        placement.answer(asked, asked.difficulty <= knows)
    return placement


def test_placement_asks_twelve_over_six_topics_and_none_twice() -> None:
    found = place("mid", 3)
    asked = [answered.entry for answered in found.answers]
    assert len(asked) == ITEMS == len({e.id for e in asked})
    assert [result.asked for result in found.result().topics] == [2] * 6


def test_placement_finds_the_strong_and_the_weak() -> None:
    for seed in range(5):
        weak, strong = place("mid", 1, seed).result(), place("mid", 5, seed).result()
        assert weak.difficulty <= 2 < 4 < strong.difficulty
        middle = place("mid", 3, seed).result()
        assert abs(middle.difficulty - 3.25) <= 0.75


def test_placement_is_harder_after_a_right_answer_and_easier_after_a_wrong_one() -> None:
    found = place("mid", 3)
    by_topic: dict[str, list[tuple[int, bool]]] = {}
    for answered in found.answers:
        by_topic.setdefault(answered.entry.topic, []).append((answered.entry.difficulty, answered.correct))
    for (first, right), (second, _) in by_topic.values():
        assert second == (min(first + 1, 5) if right else max(first - 1, 1))


def test_placement_names_the_weakest_topic() -> None:
    placement = Placement(BANK, "inference", "mid", 1)
    weak = placement.next().topic
    while (asked := placement.next()) is not None:
        placement.answer(asked, asked.topic != weak)
    assert placement.result().begin_with == weak


def test_placement_is_repeatable_skips_what_cannot_be_decided_and_ends_on_a_small_bank() -> None:
    assert [a.entry.id for a in place("mid", 3).answers] == [a.entry.id for a in place("mid", 3).answers]
    small = bank(
        *(entry(f"memory.q{n}") for n in range(4)), entry("lora.q1", kind="free"), entry("lora.q2", minutes=9)
    )
    placement = Placement(small, "inference")
    placement.skip(placement.next())
    while (asked := placement.next()) is not None:
        placement.answer(asked, True)
    assert len(placement.answers) == 3 and Placement(bank(), "sre").next() is None
    assert Placement(bank(), "sre").result().begin_with is None


# progress


def test_readiness_follows_its_formula(state: State) -> None:
    small = bank(*(entry(f"memory.q{n}") for n in range(20)), *(entry(f"lora.q{n}") for n in range(10)))
    for n in range(4):
        answer(state, f"memory.q{n}", day(-5), rating=GOOD if n else AGAIN, confidence=95)
    found = progress(small, state, now=NOW)
    memory = next(topic for topic in found.topics if topic.topic == "memory")
    known = [cards(state)[f"memory.q{n}"] for n in range(4)]
    assert memory.readiness == pytest.approx(100 * 4 / 8 * sum(strength(card, NOW) for card in known) / 4)
    assert strength(known[0], NOW) == 0
    assert found.readiness == pytest.approx(memory.readiness * 20 / 30)
    assert (memory.seen, memory.attempts, memory.accuracy, memory.surprises) == (4, 4, 0.75, 1)
    assert found.due == memory.due == 4 and found.lever == "memory"
    lora = next(topic for topic in found.topics if topic.topic == "lora")
    assert (lora.accuracy, lora.retention, lora.readiness) == (None, None, 0)


def test_readiness_goes_from_nothing_to_all_and_is_forgotten_again(state: State) -> None:
    assert progress(BANK, state, now=NOW).readiness == 0
    for found in BANK:
        answer(state, found.id, NOW, rating=EASY)
    assert progress(BANK, state, now=NOW).readiness == 100
    assert progress(BANK, state, now=day(100)).readiness < 95
    assert progress(bank(), state, now=NOW).readiness == 0


def test_level_and_role_decide_what_counts(state: State) -> None:
    state.change_settings(level="junior", role="inference")
    assert sum(topic.available for topic in progress(BANK, state).topics) == 7 * 4
    assert progress(BANK, state, role="kernel").topics == ()


# the plan


def planned(hours: float, days: int | None, unseen: int = 300, known: list[object] = ()) -> object:
    interview = None if days is None else day(days).date()
    return plan(
        known, unseen=unseen, minutes_per_question=3, hours_per_week=hours, interview=interview, now=NOW
    )


@pytest.mark.parametrize("days", [None, 1, 3, 5, 10, 23, 60, 200])
@pytest.mark.parametrize("hours", [0.5, 2, 5, 20])
def test_the_plan_fits_into_the_time_there_is(hours: float, days: int | None) -> None:
    found = planned(hours, days)
    used = (found.new_total + REVIEW_TIME * found.reviews_per_day * found.days) * 3
    assert used <= found.minutes_per_day * found.days + 3  # the days are rounded to whole questions
    assert found.new_total <= 300 and found.new_today <= found.new_per_week


def test_no_new_questions_on_the_eve() -> None:
    assert planned(20, LAST_DAYS).new_total == 0
    assert planned(20, LAST_DAYS + 1).new_total > 0 and planned(20, LAST_DAYS + 1).days_with_new == 1


def test_more_hours_bring_more_and_known_cards_get_the_time_that_is_left(state: State) -> None:
    totals = [planned(hours, 23).new_total for hours in (0.5, 1, 2, 5)]
    assert totals == sorted(set(totals)) and planned(20, 23).new_total == 300
    for found in BANK:
        answer(state, found.id, day(-5))
    known = list(cards(state).values())
    assert planned(5, 23, unseen=0, known=known).reviews_per_day > 3
    assert planned(5, 23, unseen=0, known=known).recalled > 0.85 * len(BANK)
    assert planned(20, 23).recalled > planned(5, 23).recalled > planned(2, 23).recalled


@pytest.mark.parametrize(("days", "hours"), [(7, 5), (23, 2), (23, 5), (45, 5)])
def test_the_plan_makes_learners_recall_15_percent_more(days: int, hours: float) -> None:
    found = policies(days, hours)
    for truth in TRUTHS:
        means = {name: mean_recalled(each, days, hours, truth, 10) for name, each in found.items()}
        planned = means.pop("plan")
        assert planned >= 1.15 * max(means.values()), (truth, planned, means)


@pytest.mark.parametrize("hours", [5, 10])
def test_the_plan_is_hardly_worse_where_there_is_time_for_all_questions(hours: float) -> None:
    found = policies(90, hours)
    for truth in TRUTHS:
        means = {name: mean_recalled(each, 90, hours, truth, 10) for name, each in found.items()}
        assert means.pop("plan") >= 0.97 * max(means.values()), (truth, means)


def test_the_simulation_computes_fsrs_6() -> None:
    rng = Random(5)
    for _ in range(50):
        answers = [rng.random() < 0.6 for _ in range(6)]
        memory, _ = scheduler().review_card(
            FsrsCard(card_id=0, due=NOW), Rating(GOOD if answers[0] else AGAIN), NOW
        )
        stability, difficulty = plan_simulation.first(np.array(answers[:1]))
        for known in answers[1:]:
            assert (memory.due - memory.last_review).days == interval(stability, 0.9, 36_500)[0]
            passed = (memory.due - memory.last_review).days + rng.randrange(5)
            at = memory.last_review + dt.timedelta(days=passed)
            memory, _ = scheduler().review_card(memory, Rating(GOOD if known else AGAIN), at)
            stability, difficulty = plan_simulation.remembered(
                stability, difficulty, passed, np.array([known])
            )
            assert (stability[0], difficulty[0]) == pytest.approx((memory.stability, memory.difficulty))


def test_a_plan_that_is_laid_out_as_it_was_made_has_the_same_recall(state: State) -> None:
    for found in BANK:
        answer(state, found.id, day(-60))
    known = list(cards(state).values())
    made = planned(5, 23, known=known)
    days = {"minutes_per_day": made.minutes_per_day, "today": NOW.date()}
    assert as_laid_out(known, new=made.new, reviews=made.reviews, **days) == made
    without = as_laid_out(known, new=made.new, reviews=[0] * 23, **days)
    assert sum(made.reviews) > 10 and without.recalled < made.recalled - 1


def test_without_a_date_new_questions_leave_time_for_all_reviews(state: State) -> None:
    for found in BANK:
        answer(state, found.id, day(-60))
    known = list(cards(state).values())
    without, with_date = planned(2, None, known=known), planned(2, 28, known=known)
    assert 0 < without.new_per_week < with_date.new_per_week
    assert sum(without.reviews) > 1.5 * sum(with_date.reviews)


def test_learning_imports_no_torch() -> None:
    program = (
        "import sys\n"
        "import quizzes.learning.selection, quizzes.learning.placement, quizzes.learning.progress\n"
        "import quizzes.learning.plan, quizzes.learning.calibration\n"
        "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules)\n"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root).returncode == 0
