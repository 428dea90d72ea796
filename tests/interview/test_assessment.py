"""Evidence, marks, recommendations; and that nothing earns a mark that it should not."""

from typing import Any

import pytest

from interview.drills.drill import find_drill
from interview.drills.figures import LOOKS
from interview.drills.score import Guess, score
from interview.mock import evidence as ev
from interview.mock.assessment import AxisMark, anchor, assess, lack_of, reason, recommend, rubric
from interview.mock.candidates import VAGUE, Candidate
from interview.mock.case import least_cost
from interview.mock.estimates import closeness, interval_value
from interview.mock.evidence import Evidence
from interview.mock.prose import UNPROVEN, of_prose
from interview.mock.scenario import AXES, LEVELS
from interview.mock.substance import LEAST_FOR_YES, LEAST_SAID, explains, without_filler
from interview.mock.talk import Asked
from quizzes.experiments.runner import Runner
from quizzes.free_text.scoring import Mark
from quizzes.grading import Graded, Part
from quizzes.question import KeyPoint
from tests.interview.helpers import start

POINTS = [
    KeyPoint(
        id="a", say="Blocks run out.", must=True, good=["no block is free"], bad=["blocks never run out"]
    ),
    KeyPoint(id="b", say="A request is preempted.", must=True, good=["one is preempted"], bad=["all go on"]),
]
GOOD = (
    "When 0 blocks are free, the scheduler preempts the request that came last. Its blocks go back to the pool. "
    "Later its prompt and its tokens are computed again, so its TTFT does not change but its latency grows. "
    "The counter of preemptions shows it, and the share of used blocks is at 100 % before each of them. "
    "I would look at both before I add memory."
)


BRIEF = (
    "Streams stall while the pool of blocks is full. What happens to a prompt, to its tokens, to its TTFT and its "
    "latency? Which counter of preemptions or memory shows it?"
)


def number(
    given: float, expected: float, interval: tuple[float, float] | None = None, ok: bool = False
) -> Part:
    hit = None if interval is None else interval[0] <= expected <= interval[1]
    return Part("x", given, expected, ok, float(ok), 1.0, interval=interval, level=0.8, hit=hit)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        (number(100, 100, ok=True), 5),
        (number(110, 100), 4),
        (number(190, 100), 3),
        (number(25, 100), 2),
        (number(2, 100), 1),
        (number(-100, 100), 1),
        (Part("choice", ["a"], ["b"], False, 0.0, 1.0), 1),
        (Part("choice", ["a"], ["a"], True, 1.0, 1.0), 5),
        (Part("flag", True, False, False, 0.0, 1.0), 1),
    ],
)
def test_closeness(part: Part, value: float) -> None:
    assert closeness(part) == value


@pytest.mark.parametrize(
    ("given", "interval", "value"),
    [
        (110, (90, 120), 5),
        (160, (90, 170), 4),
        (110, (50, 250), 4),
        (110, (50, 1000), 3),
        (1000, (1, 1e6), 1),
        (1000, (900, 1100), 1),
        (1000, None, 1),
        (100, (100, 100), 5),
    ],
)
def test_an_interval_earns_most_if_its_number_is_close_and_it_is_narrow_and_holds(
    given: float, interval: tuple[float, float] | None, value: float
) -> None:
    assert interval_value(number(given, 100, interval)) == value


@pytest.mark.parametrize(
    ("interval", "value"),
    [((34, 100), 3), ((60, 100), 4), ((90, 99), 5), ((10, 98), 2), ((80, 100), 5), ((60, 95), 2)],
)
def test_an_interval_of_a_share_is_narrow_by_its_percentage_points(
    interval: tuple[float, float], value: float
) -> None:
    hit = interval[0] <= 97 <= interval[1]
    part = Part("x", 95, 97, False, 0.0, 1.0, unit="%", interval=interval, level=0.8, hit=hit)
    assert interval_value(part) == value


def prose(text: str, marks: dict[str, Mark], probes: dict[str, list[bool]], **more: Any) -> dict[str, float]:
    given = {"clarified": 0, "lo": 60, "hi": 150, "seconds": 60.0, "minutes": 3.0, "said": BRIEF, **more}
    found = of_prose(text, POINTS, marks, probes, ["mechanism", "communication"], "s/x", **given)
    return {each.axis: each.value for each in found}


def test_prose_without_probes_is_no_machine_evidence_of_its_mechanism() -> None:
    assert "mechanism" not in prose(GOOD, {"a": "hit", "b": "hit"}, {})


def test_own_marks_cannot_lift_an_answer_whose_probes_fail() -> None:
    assert prose(GOOD, {"a": "hit", "b": "hit"}, {"a": [False], "b": [False]})["mechanism"] <= 2


def test_an_answer_without_a_word_of_any_key_point_explains_nothing_whatever_its_probes_say() -> None:
    marks: dict[str, Mark] = {"a": "hit", "b": "hit"}
    right = {"a": [True], "b": [True]}
    elsewhere = (
        "My favourite holiday was in the mountains, where it rained and we played cards all day long. " * 3
    )
    assert prose(GOOD, marks, right)["mechanism"] == 5
    assert prose(elsewhere, marks, right)["mechanism"] == 1


def test_fluent_sentences_that_say_nothing_are_no_communication() -> None:
    right, wrong = {"a": [True], "b": [True]}, {"a": [False], "b": [False]}
    about_soup = (
        "My grandmother says that soup is best when it is cold, and she made 7 of them. Why would you paint a fence, "
        "if not for the goats that live behind it? In the end we went home and had 2 buckets of milk. It was Tuesday, "
        "and the mountain has never been so green in all of its life, as far as I can remember from the years before."
    )
    assert prose(GOOD, {}, right, clarified=1)["communication"] == 5
    assert prose(GOOD, {}, wrong, clarified=1)["communication"] == UNPROVEN
    assert prose(about_soup, {}, right, clarified=1)["communication"] == 2
    assert prose(GOOD, {}, right, said=f"Here is a problem. {GOOD} What do you say?")["communication"] == 1


def test_few_words_explain_nothing_even_if_the_probes_are_right() -> None:
    found = prose("Preemption.", {"a": "hit", "b": "hit"}, {"a": [True], "b": [True]})
    assert found == {"mechanism": 1.0, "communication": 2.0}


@pytest.mark.parametrize("text", ["", ".", "..."])
def test_silence_is_the_least(text: str) -> None:
    assert set(prose(text, {}, {}).values()) == {1.0}


def test_a_list_of_terms_is_as_little_as_silence_and_no_explanation() -> None:
    terms = (
        "KV cache, paged attention, chunked prefill, continuous batching, roofline, HBM, prefix hash, TTFT, "
        * 3
    )
    assert prose(terms, {}, {})["communication"] == 1
    assert not explains(terms, len(terms.split()))
    assert explains(GOOD, len(GOOD.split()))


def test_a_point_in_words_that_fit_any_question_is_no_explanation_and_earns_less_than_a_short_answer() -> (
    None
):
    padded = f"No block is free, so a request is preempted, and its blocks run out of use. {VAGUE}"
    left = without_filler(padded, POINTS, BRIEF)
    assert LEAST_SAID <= len(left.split()) < len(padded.split()) / 2
    assert prose(padded, {}, {"a": [True]})["communication"] == 2
    assert not explains(padded, len(left.split()))


@pytest.mark.parametrize(
    ("late", "explained", "asked", "value", "why"),
    [
        (0, True, True, 5, "9 of 9 answers in time"),
        (9, True, True, 1, "0 of 9 answers in time"),
        (0, True, False, 4, "9 of 9 answers in time, but no fact was asked for: at most 4"),
        (
            0,
            False,
            True,
            2,
            "9 of 9 answers in time, but no explanation that its follow-ups confirm: at most 2",
        ),
        (9, False, False, 1, "0 of 9 answers in time"),
    ],
)
def test_a_mark_of_the_pace_says_what_limits_it(
    late: int, explained: bool, asked: bool, value: float, why: str
) -> None:
    [found] = ev.of_pace(late, 9, explained=explained, asked=asked)
    assert (found.value, found.why) == (value, why)


def test_prose_outweighs_a_probe_only_as_evidence_of_mechanism() -> None:
    found = of_prose(
        "Preemption.", POINTS, {}, {}, ["mechanism", "tradeoffs"], "s/x",
        clarified=0, lo=60, hi=150, seconds=60.0, minutes=3.0,
    )  # fmt: skip
    assert {each.axis: each.weight for each in found} == {"mechanism": ev.PROSE_WEIGHT, "tradeoffs": 1.0}


def test_communication_counts_questions_figures_length_and_time() -> None:
    plain = prose(GOOD, {}, {})["communication"]
    assert plain == 4
    assert prose(GOOD, {}, {}, clarified=1)["communication"] == 5
    assert prose(GOOD, {}, {}, seconds=400.0)["communication"] == 2.5
    assert prose(VAGUE, {}, {})["communication"] == 2
    assert prose(GOOD * 6, {}, {})["communication"] == 2


def test_a_hint_caps_what_is_shown() -> None:
    graded = Graded((number(100, 100, (90, 110), ok=True),), "exact")
    assert {
        e.value for e in ev.of_answers(graded, ["correctness", "quantification"], "s/x", rescued=True)
    } == {3}


OPTION = Part("choice", ["a"], ["a"], True, 1.0, 1.0), Part("choice", ["a"], ["b"], False, 0.0, 1.0)


@pytest.mark.parametrize(
    ("sure", "right", "wrong", "weight"),
    [(95, 5, 1, 2), (80, 5, 1, 2), (79, 4.5, 1, 1), (50, 4.5, 1, 1), (49, 3, 2, 1), (1, 3, 2, 1)],
)
def test_the_value_of_an_option_depends_on_the_confidence(
    sure: int, right: float, wrong: float, weight: float
) -> None:
    found = [
        ev.of_answers(Graded((part,), "exact"), ["correctness"], "s/x", rescued=False, confidence=sure)[0]
        for part in OPTION
    ]
    assert [each.value for each in found] == [right, wrong]
    assert [each.weight for each in found] == [1, weight]


def test_a_number_that_is_far_off_earns_less_and_counts_twice_if_the_candidate_was_sure() -> None:
    def found(given: float, sure: int) -> tuple[float, float]:
        graded = Graded((number(given, 100),), "exact")
        one = ev.of_answers(graded, ["correctness"], "s/x", rescued=False, confidence=sure)[0]
        return one.value, one.weight

    assert found(400, 95) == (1, 2)
    assert found(400, 60) == (2, 1)
    assert found(120, 95) == (4, 1), "nearly right"
    assert found(200, 95) == (3, 1) and found(201, 95) == (1, 2), "as the help says"


@pytest.mark.parametrize(("interval", "weight"), [((90.0, 700.0), 1), ((300.0, 700.0), 2)])
def test_an_interval_counts_twice_only_if_it_missed(interval: tuple[float, float], weight: float) -> None:
    graded = Graded((number(300, 100, interval),), "exact")
    right, wrong = ev.of_answers(
        graded, ["quantification", "correctness"], "s/x", rescued=False, confidence=95
    )[::-1]
    assert right.axis == "quantification" and right.weight == weight
    assert ("counts twice" in right.why) is (weight == 2)
    assert wrong.weight == 2 and wrong.why.endswith("counts twice and earns 1 less")


@pytest.mark.parametrize(
    ("met", "cost", "value"),
    [
        ([True, True], 10.0, 5),
        ([True, True], 14.0, 4),
        ([True, True], 40.0, 3),
        ([True, True], 160.0, 2),
        ([True, False], 1.0, 2),
        ([False, False], 1.0, 1),
    ],
)
def test_a_design_needs_all_goals_then_its_cost_counts(met: list[bool], cost: float, value: float) -> None:
    assert ev.of_canvas(met, cost, 10.0, ["tradeoffs"], "s/x", 2)[0].value == value


def test_an_incident_is_marked_by_the_score_of_its_drill() -> None:
    drill = find_drill("seqs-too-low")

    def value(cause: str, evidence: list[str], looks: list[str], fixes: int, is_fixed: bool) -> float:
        found = score(drill, looks, [Guess(cause, 80, evidence)], fixes if is_fixed else None, 60.0)
        return ev.of_drill(found, fixes, ["diagnosis"], "s/x", least=1)[0].value

    assert value("seqs_too_low", ["waiting_mean", "running_mean"], ["queue"], 1, True) == 5
    assert value("seqs_too_low", ["waiting_mean", "running_mean"], ["queue"], 2, True) == 4.6
    assert value("seqs_too_low", ["kv_mean"], ["queue"], 1, True) == 4.2
    assert value("overload", ["kv_mean"], ["queue"], 2, False) == 1.4
    assert value("overload", ["kv_mean"], [], 2, False) == 1


@pytest.mark.parametrize(
    ("looks", "value", "why"),
    [
        (["queue"], 5, "looks cost 1: 100 of"),
        (["quality", "queue"], 4.5, "looks cost 3 where 1 would do: 100 of"),
        ([name for name in LOOKS if name != "config"], 3, "looks cost 17 where 1 would do: 90 of"),
    ],
)
def test_looks_beyond_the_cheapest_that_decide_lower_the_mark(
    looks: list[str], value: float, why: str
) -> None:
    drill = find_drill("seqs-too-low")
    found = score(drill, looks, [Guess(drill.cause, 80, ["waiting_mean", "running_mean"])], 1, 60.0)
    [observed] = ev.of_drill(found, 1, ["diagnosis"], "s/x", least=least_cost(drill))
    assert observed.value == value and why in observed.why
    assert observed.kind == "incident", "solved, which no guess does"


@pytest.mark.parametrize(("drill", "cost"), [("seqs-too-low", 1), ("never-fits", 3), ("noisy-neighbour", 2)])
def test_the_least_cost_is_that_of_the_looks_with_all_figures_that_a_full_score_names(
    drill: str, cost: int
) -> None:
    assert least_cost(find_drill(drill)) == cost


@pytest.mark.parametrize(
    ("cause", "sure", "weight"), [("overload", 80, 2), ("overload", 60, 1), ("seqs_too_low", 95, 1)]
)
def test_a_wrong_cause_of_an_incident_counts_twice_and_says_so(cause: str, sure: int, weight: float) -> None:
    drill = find_drill("seqs-too-low")
    found = score(drill, ["queue"], [Guess(cause, sure, ["kv_mean"])], None, 60.0)
    observed = ev.of_drill(found, 2, ["diagnosis", "correctness"], "s/x", sure, least=1)
    assert [each.weight for each in observed] == [weight] * 2
    assert {each.kind for each in observed} == {"option"}, "not solved: no repair helped"
    assert [each.why.endswith(f"; {sure} % sure, so it counts twice") for each in observed] == [
        weight == 2
    ] * 2


def test_a_mark_needs_two_observations_and_rounds_halves_down() -> None:
    one = Evidence("diagnosis", 5.0, "", "s/x")
    assert AxisMark("diagnosis", (one,), None).value is None
    assert AxisMark("diagnosis", (one, Evidence("diagnosis", 4.0, "", "s/y")), None).value == 4


def test_an_answer_that_counts_twice_is_one_observation_and_an_explanation_two() -> None:
    [wrong] = ev.of_answers(
        Graded((number(400, 100),), "exact"), ["correctness"], "s/x", rescued=False, confidence=95
    )
    assert wrong.weight == 2 and AxisMark("correctness", (wrong,), None).value is None
    [explained] = of_prose(
        GOOD, POINTS, {}, {"a": [True]}, ["mechanism"], "s/x", clarified=0, lo=60, hi=150, seconds=60.0, minutes=3.0
    )  # fmt: skip
    assert AxisMark("mechanism", (explained,), None).value is not None
    rounds = [ev.of_canvas([True], 1.0, 1.0, ["tradeoffs"], "s/x", 1, weight=1 / 2)[0] for _ in range(2)]
    assert AxisMark("tradeoffs", tuple(rounds), None).value == 5


@pytest.mark.parametrize(
    ("level", "low", "unseen", "says"),
    [
        (
            "staff",
            {},
            "tradeoffs",
            "5 of 6 axes; too little was observed of trade-offs: with good marks there it would be "
            '"strong yes"',
        ),
        ("senior", {"quantification": 2}, "", '6 of 6 axes; "lean yes" needs quantification 3 (2)'),
        ("senior", {"mechanism": 4}, "", '6 of 6 axes; "strong yes" needs mechanism 5 (4)'),
        ("mid", {}, "", "6 of 6 axes"),
    ],
)
def test_a_recommendation_says_what_it_rests_on_and_what_the_better_one_needs(
    level: str, low: dict[str, int], unseen: str, says: str
) -> None:
    values: dict[str, int | None] = {axis: None if axis == unseen else low.get(axis, 5) for axis in AXES}
    assert reason(level, values) == f"it rests on {says}"


def test_every_level_has_recommendations_in_order_and_every_mark_an_anchor() -> None:
    assert set(rubric()["recommendations"]) == set(LEVELS)
    for level in LEVELS:
        order = [*rubric()["recommendations"][level], "strong no"]
        found = [order.index(recommend(level, dict.fromkeys(AXES, value))) for value in (5, 4, 3, 2, 1)]
        assert found == sorted(found) and found[0] == 0 and found[-1] == len(order) - 1
    assert all(anchor(axis, value) for axis in AXES for value in range(1, 6))


def test_a_higher_level_asks_for_more() -> None:
    for value in (1, 2, 3, 4, 5):
        order = [["strong yes", "yes", "lean yes", "lean no", "no", "strong no"].index(
            recommend(level, dict.fromkeys(AXES, value))) for level in LEVELS]  # fmt: skip
        assert order == sorted(order)


def test_what_was_not_observed_is_no_number(runner: Runner) -> None:
    assert recommend("mid", {"correctness": None, "mechanism": 5}) == "too little observed"
    with start(minutes=20) as session:
        Candidate("excellent", session, runner).hold()
    assert assess(session.talk).mark("diagnosis").value is None


def test_praise_needs_a_mark_on_each_axis_that_it_names_and_no_axis_in_doubt() -> None:
    fives = dict.fromkeys(AXES, 5)
    assert recommend("staff", {**fives, "tradeoffs": None}) == "lean yes"
    assert recommend("mid", {**fives, "tradeoffs": None}) == "strong yes"  # mid does not name trade-offs
    assert recommend("mid", {**fives, "tradeoffs": None}, ["tradeoffs"]) == "lean yes"
    assert (
        recommend("mid", {**fives, "tradeoffs": None, "diagnosis": None}) == "lean yes"
    )  # two axes unobserved
    assert recommend("staff", fives) == "strong yes"
    assert recommend("staff", fives, explained=False) == "lean yes"
    why = "it came near no key point"
    needs = f"an explanation of {LEAST_FOR_YES} words that makes a key point, with right follow-ups: {why}"
    assert f'"yes" needs {needs}' in reason("staff", fives, lack=why)
    bad = Evidence("tradeoffs", 1.0, "2 of 4 goals met", "s/canvas")
    assert AxisMark("tradeoffs", (bad,), None).is_in_doubt
    assert not AxisMark("tradeoffs", (bad, bad), None).is_in_doubt  # it has a mark
    assert not AxisMark("tradeoffs", (Evidence("tradeoffs", 5.0, "", "s/x"),), None).is_in_doubt


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ([], "none was given"),
        ([("it had 7 words",)], "it had 7 words"),
        ([("it had 7 words", "it came near no key point"), ("most went wrong",)], "most went wrong"),
        ([("it had 7 words", "most went wrong")], "it had 7 words and most went wrong"),
        ([("it had 7 words",), ()], ""),
    ],
)
def test_the_reason_names_what_the_best_explanation_lacks(lacks: list[tuple[str, ...]], why: str) -> None:
    given = [Asked("s/x", "core", "prose", "", 3.0, replies={"text": GOOD}, lacks=lack) for lack in lacks]
    silent = Asked("s/y", "core", "prose", "", 3.0, replies={"text": ""}, lacks=("it had 0 words",))
    assert lack_of([silent, *given]) == why


@pytest.mark.parametrize(
    ("text", "passes", "why"),
    [
        ("A freed slot is refilled at the next step.", True, "it had 9 words without repetitions and filler"),
        ("", False, "none was given"),
    ],
)
def test_a_session_says_why_no_explanation_can_carry_a_yes(text: str, passes: bool, why: str) -> None:
    with start() as session:
        reply = {"replies": {"choice": "1", "steps": "1"}, "confidence": 50} if passes else {"pass": True}
        while session.turn is not None and "bound#" not in session.turn.id:
            kind = session.turn.id.rpartition("#")[2]
            if kind.startswith("answer"):
                session.reply({"text": text})
            elif kind.startswith("mark"):
                session.reply({"mark": "hit"})
            else:
                session.reply(reply if kind in ("ask", "again") else {})
        assert lack_of(session.talk.asked).startswith(why)


def asked(n: int, value: float, replies: dict[str, str], *, sure: int = 99, stage: str = "probe") -> Asked:
    found = Asked(
        f"s/{n}", stage, "reverse" if stage == "reverse" else "ask", "", 1, replies={"replies": replies}
    )
    found.value, found.confidence = value, sure
    return found


@pytest.mark.parametrize(("right", "sure", "strong"), [(2, 99, []), (4, 99, [4, 3, 2]), (4, 50, [])])
def test_a_right_option_is_a_strength_only_of_somebody_who_was_sure_and_mostly_right(
    right: int, sure: int, strong: list[int]
) -> None:
    with start() as session:
        talk = session.talk
    talk.asked = [asked(n, 5.0 if n <= right else 1.0, {"choice": "1"}, sure=sure) for n in range(1, 6)]
    talk.evidence = [Evidence("correctness", each.value or 0.0, "", each.key) for each in talk.asked]
    shown = sorted((int(strength.key[2:]) for strength in assess(talk).strengths), reverse=True)
    assert len(shown) == len(strong) and set(shown) <= set(range(1, right + 1))
    talk.asked.append(asked(9, 5.0, {"steps": "620", "steps.interval": "600..640"}, sure=sure))
    talk.evidence.append(Evidence("correctness", 5.0, "", "s/9", kind="number"))
    assert "s/9" in {strength.key for strength in assess(talk).strengths}, "a number is no luck"


def test_strengths_and_gaps_rest_on_what_an_explanation_or_numbers_support() -> None:
    with start() as session:
        talk = session.talk
    talk.asked = [asked(1, 5.0, {"choice": "1"}), asked(2, 1.0, {"steps": "7"})]
    talk.asked.append(Asked("s/why", "core", "prose", "", 3.0))
    talk.evidence = [
        Evidence("diagnosis", 5.0, "right", "s/1", kind="option"),
        Evidence("correctness", 1.0, "wrong", "s/2", kind="number"),
    ]
    unsupported = assess(talk)
    assert unsupported.strengths == () and [gap.key for gap in unsupported.gaps] == ["s/2", "s/1"]
    talk.asked[-1].makes_a_point = True
    assert [strength.key for strength in assess(talk).strengths] == ["s/1"]
