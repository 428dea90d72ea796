"""Parsing round trips, and whole replies: points, mistakes, options, orders, intervals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interview.mock.scenario import Pick
from interview.mock.turns import read_pick
from quizzes.grading import ParseError, check_reply, grade, parse, parse_interval, reply_keys
from quizzes.grading.check import slip
from quizzes.grading.grade import typed, typed_replies
from quizzes.grading.options import adjacent_share, picked_share
from quizzes.grading.units import KINDS, expected_unit, unit
from quizzes.instance import draw
from quizzes.question import Answer, Question
from tests.quizzes.made_up import question

untimed = settings(deadline=None)
"""A busy machine may take its time."""

NUMBERS = question(
    kind="numeric",
    params={"n": {"const": 12}},
    answers=[
        {"id": "steps", "type": "int", "unit": "steps", "expect": "=n + 2", "points": 2},
        {"id": "size", "type": "float", "unit": "GiB", "expect": "=n / 4", "interval": 0.8},
    ],
    mistakes=[
        {
            "id": "forgot",
            "when": {"answer": "steps", "equals": "=n"},
            "say": "{{ n }} lacks 2 of {{ expected.steps }}.",
        },
        {"id": "never", "when": {"answer": "steps", "equals": "=n / 0"}, "say": "no"},
        {"id": "half", "when": {"answer": "size", "equals": "=n / 8"}, "say": "K without V."},
    ],
)
CHOICES = [
    {"id": "slow", "text": "slower"},
    {"id": "same", "text": "as fast"},
    {"id": "fast", "text": "faster"},
]
ONE = question(
    kind="choice",
    params={"n": {"const": 1}},
    choices=[{**choice, "right": f"={index} == n"} for index, choice in enumerate(CHOICES)],
    mistakes=[{"id": "upside_down", "when": {"answer": "choice", "equals": "fast"}, "say": "The other way."}],
)
ALL = question(
    kind="multi",
    choices=[
        {"id": "a", "text": "1", "right": True},
        {"id": "b", "text": "2", "right": True},
        {"id": "c", "text": "3"},
        {"id": "d", "text": "4"},
    ],
    mistakes=[{"id": "took_c", "when": {"answer": "c", "equals": True}, "say": "Not c."}],
)
ORDER = question(kind="order", items=[{"id": letter, "text": letter} for letter in "abcd"])


# ---- figures ----------------------------------------------------------------------------------------------------


@untimed
@given(st.integers(-(10**30), 10**30))
def test_every_whole_number_comes_back_however_it_is_grouped(number: int) -> None:
    answer = Answer(id="x", type="int")
    for text in (f"{number}", f"{number:,}", f"{number:_}", f"{number:,}".replace(",", " ")):
        assert parse(text, answer).value == number


@untimed
@given(st.floats(1e-30, 1e30) | st.floats(-1e30, -1e-30) | st.just(0.0))
def test_every_float_comes_back(number: float) -> None:
    assert parse(repr(number), Answer(id="x", type="float")).value == pytest.approx(number, rel=1e-15)


@untimed
@given(
    st.integers(1, 10**6),
    st.sampled_from([(kind, word) for kind in KINDS for word in KINDS[kind]]),
    st.data(),
)
def test_a_figure_in_any_unit_of_a_kind_is_the_same_figure(
    number: int, typed: tuple[str, str], data: st.DataObject
) -> None:
    kind, word = typed
    asked = data.draw(st.sampled_from(sorted(KINDS[kind])))
    answer = Answer(id="x", type="float", unit=asked)
    exact = Fraction(number) * KINDS[kind][word] / KINDS[kind][asked]
    assert parse(f"{number} {word}", answer).value == float(exact)


@untimed
@example(numbers=[4, -9, -2], separator=" ")
@given(
    numbers=st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=20),
    separator=st.sampled_from([", ", " ", "; ", " -> "]),
)
def test_every_list_comes_back_with_every_separator(numbers: list[int], separator: str) -> None:
    assert parse(separator.join(map(str, numbers)), Answer(id="x", type="ints")).value == numbers


@untimed
@given(st.text(max_size=200), st.sampled_from(["int", "float", "bool", "word", "words", "ints"]))
def test_any_text_is_read_or_refused_with_a_next_step(text: str, kind: Any) -> None:
    for asked in (None, "GiB", "steps", "tok/s"):
        try:
            parse(text, Answer(id="x", type=kind, unit=asked))
        except ParseError as error:
            assert error.what and error.next_step and error.answer == "x"


def test_decimal_and_binary_bytes_are_told_apart_and_remarked_upon() -> None:
    parsed = parse("1.5 GB", Answer(id="x", type="float", unit="GiB"))
    assert parsed.value == 1.5e9 / 2**30
    assert parsed.remark == "you answered in GB; in GiB it is 1.397"
    assert parse("1.5", Answer(id="x", type="float", unit="GiB")).remark == ""


def test_a_refused_unit_lists_what_is_accepted() -> None:
    with pytest.raises(ParseError, match=r"it measures time, not bytes.*KiB"):
        parse("3 ms", Answer(id="x", type="float", unit="GiB"))
    with pytest.raises(ParseError, match=r"it measures time, not steps;"):
        parse("3 ms", Answer(id="x", type="int", unit="steps"))
    with pytest.raises(ParseError, match=r"parsec.*unit is unknown"):
        parse("3 parsec", Answer(id="x", type="float", unit="GiB"))


@pytest.mark.parametrize(("text", "decimal"), [("0x10", 16), ("0X1f tokens", 31), ("0b101", 5), ("0o17", 15)])
def test_a_number_in_another_base_is_named_with_its_decimal_value(text: str, decimal: int) -> None:
    with pytest.raises(ParseError, match=f"is (hexadecimal|binary|octal); type it in decimal: {decimal}$"):
        parse(text, Answer(id="x", type="int", unit="tokens"))
    with pytest.raises(ParseError, match=f"type it in decimal: {decimal}$"):
        read_pick(Pick(id="x", ask="tokens", lo=0, hi=100), text)


@pytest.mark.parametrize("text", ["10..20", "1..1000", "1.5..2"])
def test_an_interval_in_place_of_a_number_is_called_one(text: str) -> None:
    with pytest.raises(ParseError, match="is an interval; type one number"):
        parse(text, Answer(id="x", type="float"))


def test_compound_units_are_their_parts() -> None:
    assert unit("KiB/token").factor == 1024
    assert unit("TFLOPS").kind == "FLOP/time"
    assert unit("FLOP/B").kind == "FLOP/bytes"
    assert unit("$/1M tokens").factor == unit("$/Mtok").factor == Fraction(1, 10**6)
    assert expected_unit("GPU-hours").kind == "gpu-hour"
    assert unit("GPU-hours") is None


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("90..120", (90, 120)),
        ("90 to 120 ms", (90, 120)),
        ("90-120", (90, 120)),
        ("0.09 s to 0.12 s", (90, 120)),
        ("0.09-0.12 s", (90, 120)),
        ("-5..5", (-5, 5)),
        ("1e-3..2e-3", (0.001, 0.002)),
    ],
)
def test_intervals(text: str, ends: tuple[float, float]) -> None:
    assert parse_interval(text, Answer(id="x", type="float", unit="ms")) == pytest.approx(ends)


def test_an_interval_that_does_not_hold_its_own_number_is_asked_for_again() -> None:
    instance = draw(NUMBERS, 1)
    for number, interval in (("3 GiB", "4..5"), ("3", "1..2.9 GiB"), ("3072 MiB", "100..200 MiB")):
        with pytest.raises(ParseError, match="lies outside of your interval"):
            check_reply(instance, "size.interval", interval, {"size": number})
    for number, interval in (("3 GiB", "3..5"), ("3", "2900 MiB..3 GiB"), ("", "1..2")):
        check_reply(instance, "size.interval", interval, {"size": number})


def test_an_interval_of_percentages_needs_its_sign_only_where_it_may_be_one_of_shares() -> None:
    share = Answer(id="x", type="float", unit="%")
    assert parse_interval("0.5..3", share) == (0.5, 3)
    assert parse_interval("0.1..0.9 %", share) == pytest.approx((0.1, 0.9))
    with pytest.raises(ParseError, match="10 %"):
        parse_interval("0.1..0.9", share)


@pytest.mark.parametrize("text", ["90", "", "120..90", "a..b", "1..2..3", "90 to 120 GiB"])
def test_intervals_that_are_none(text: str) -> None:
    with pytest.raises(ParseError):
        parse_interval(text, Answer(id="x", type="float", unit="ms"))


# ---- whole replies ----------------------------------------------------------------------------------------------


def test_a_right_reply_has_all_points() -> None:
    graded = grade(draw(NUMBERS, 1), {"steps": "14", "size": "3 GiB", "size.interval": "2..4"})
    assert graded.all_right
    assert (graded.points, graded.max_points, graded.grader) == (3, 3, "band")
    assert [part.hit for part in graded.parts] == [None, True]
    assert graded.parts[1].level == 0.8


def test_a_wrong_reply_names_the_mistake_that_it_is_the_signature_of() -> None:
    graded = grade(draw(NUMBERS, 1), {"steps": "12", "size": "1.5", "size.interval": "1..2"})
    assert graded.points == 0
    assert graded.mistakes == ("forgot", "half")
    assert graded.parts[0].say == "12 lacks 2 of 14."
    assert graded.parts[1].hit is False


def test_a_right_reply_is_never_a_mistake() -> None:
    same = question(
        kind="numeric",
        answers=[{"id": "x", "type": "int", "expect": 4}],
        mistakes=[{"id": "m", "when": {"answer": "x", "equals": 4}, "say": "no"}],
    )
    assert grade(draw(same, 1), {"x": "4"}).mistakes == ()


@pytest.mark.parametrize(
    ("typed", "remark"),
    [
        ("13", "off by one"),
        ("28", "twice"),
        ("7", "half"),
    ],
)
def test_a_near_miss_is_remarked_upon(typed: str, remark: str) -> None:
    part = grade(draw(NUMBERS, 1), {"steps": typed, "size": "3"}).parts[0]
    assert not part.ok
    assert remark in part.remark


@pytest.mark.parametrize(
    ("factor", "unit", "remark"),
    [
        (8, "GB/s", "bits for bytes"), (1024, "B", "binary prefix"), (1000, "ms", "a prefix"),
        (1000, "EUR", "a prefix"), (100, "%", "percent"), (2**30 / 10**9, "GiB", "GB for GiB"),
    ],
)  # fmt: skip
def test_a_slip_is_one_that_its_unit_allows(factor: float, unit: str, remark: str) -> None:
    assert remark in slip(3 * factor, 3, whole=False, unit=unit)
    for count in ("tokens", "blocks", "steps", "requests", "tokens/s", "x", "GPUs"):
        assert slip(3 * factor, 3, whole=True, unit=count) == "", "no one takes bits for bytes in a count"


def test_the_right_size_with_the_other_sign_is_remarked_upon() -> None:
    assert slip(-3, 3, whole=False, unit="GB") == "the right size with the other sign"


@pytest.mark.parametrize("kind", ["int", "float"])
@pytest.mark.parametrize("unit", ["steps", "tokens", "requests", "GPUs", "GPU hours"])
@pytest.mark.parametrize("typed", ["-5", "-5 {unit}", "−5", "- 5k", "-5 ms", "about -5"])
def test_a_negative_count_is_refused(typed: str, unit: str, kind: Any) -> None:
    with pytest.raises(ParseError, match=f"a number of {unit} is not negative; type 0 or more"):
        parse(typed.format(unit=unit), Answer(id="x", type=kind, unit=unit))


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        *(("int", "B"), ("int", "ms"), ("int", None), ("float", "points"), ("int", "points")),
        *(("int", "tokens/s"), ("int", "°C"), ("float", "dB"), ("int", "degrees")),
    ],
)
def test_a_difference_may_be_negative(kind: Any, unit: str | None) -> None:
    assert parse("-5", Answer(id="x", type=kind, unit=unit)).value == -5


def test_the_right_number_in_the_wrong_unit_is_wrong_and_said_so() -> None:
    graded = grade(draw(NUMBERS, 1), {"steps": "14", "size": "3 GB"})
    part = graded.parts[1]
    assert not part.ok and graded.parts[0].ok and not graded.all_right
    assert part.remark == "you answered in GB; in GiB it is 2.794; the number would be right in GiB"


@pytest.mark.parametrize(
    "replies", [{}, {"steps": "14"}, {"steps": "14", "size": "red"}, {"steps": "", "size": "3"}]
)
def test_a_reply_that_cannot_be_read_scores_nothing(replies: dict[str, str]) -> None:
    with pytest.raises(ParseError) as refused:
        grade(draw(NUMBERS, 1), replies)
    assert refused.value.answer in ("steps", "size")


def test_an_experiment_decides_what_names_its_result() -> None:
    ran = question(
        kind="predict",
        experiment={"run": "batching.static_vs_continuous"},
        answers=[{"id": "x", "type": "int", "expect": "=result.steps"}],
    )
    assert grade(draw(ran, 1), {"x": "7"}, {"steps": 7}).all_right
    assert grade(draw(ran, 1), {"x": "7"}, {"steps": 8}).grader == "experiment"


# ---- options ----------------------------------------------------------------------------------------------------


def test_an_option_is_named_by_id_or_by_the_number_it_is_shown_with() -> None:
    for seed in range(6):
        instance = draw(ONE, seed)
        shown = [choice.id for choice in instance.choices()]
        for text in ("same", "SAME", f"{shown.index('same') + 1}", f"({shown.index('same') + 1})"):
            assert grade(instance, {"choice": text}).all_right
        graded = grade(instance, {"choice": "fast"})
        assert (graded.points, graded.mistakes) == (0, ("upside_down",))


@pytest.mark.parametrize("text", ["", "4", "0", "slow, fast", "none", "slower", "1.5", "slow slow"])
def test_an_option_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        grade(draw(ONE, 1), {"choice": text})


@pytest.mark.parametrize(
    ("text", "points"),
    [("a, b", 1.0), ("ba", 1.0), ("a", 0.5), ("a, b, c", 0.5), ("a c", 0.0), ("a b c d", 0.0), ("none", 0.0)],
)
def test_all_that_hold_is_graded_by_option(text: str, points: float) -> None:
    graded = grade(draw(ALL, 1), {"choice": text})
    assert graded.points == points
    assert graded.all_right is (points == 1)
    assert graded.mistakes == (("took_c",) if "c" in text else ())


def test_naming_a_wrong_option_beside_the_only_right_one_earns_nothing() -> None:
    asked = question(
        kind="debug", choices=[{**choice, "right": choice["id"] == "same"} for choice in CHOICES]
    )
    assert grade(draw(asked, 1), {"choice": "same"}).all_right
    graded = grade(draw(asked, 1), {"choice": "same, fast"})
    assert (graded.points, graded.all_right) == (0, False)


def test_an_order_is_graded_by_neighbours() -> None:
    instance = draw(ORDER, 3)
    shown = instance.items()
    numbers = " ".join(str(shown.index(letter) + 1) for letter in "abcd")
    for text in ("a, b, c, d", "abcd", "a > b > c > d", numbers):
        assert grade(instance, {"order": text}).points == 1
    assert grade(instance, {"order": "b c d a"}).points == pytest.approx(2 / 3)
    assert grade(instance, {"order": "d c b a"}).points == 0
    for text in ("a b c", "a b c c", "a b c e", ""):
        with pytest.raises(ParseError):
            check_reply(instance, "order", text)


@untimed
@given(st.permutations(list("abcdef")))
def test_only_the_right_order_has_all_points(given_order: list[str]) -> None:
    assert (adjacent_share(given_order, list("abcdef")) == 1) is (given_order == list("abcdef"))


@untimed
@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef"), min_size=1))
def test_only_exactly_the_right_options_have_all_points(chosen: set[str], right: set[str]) -> None:
    share = picked_share(sorted(chosen), sorted(right))
    assert 0 <= share <= 1
    assert (share == 1) is (chosen == right)


@pytest.mark.parametrize("asked", [NUMBERS, ONE, ALL, ORDER])
def test_the_right_answers_can_be_typed(asked: Question) -> None:
    for seed in range(5):
        instance = draw(asked, seed)
        assert grade(instance, typed_replies(instance, instance.expected())).all_right


def test_the_number_on_the_screen_wins_over_an_id_that_is_a_number() -> None:
    sizes = [{"id": name, "text": name, "right": name == "2"} for name in ("1", "2", "512")]
    asked = question(kind="choice", choices=sizes)
    for seed in range(6):
        instance = draw(asked, seed)
        shown = [choice.id for choice in instance.choices()]
        assert grade(instance, {"choice": str(shown.index("2") + 1)}).all_right
        assert grade(instance, {"choice": "512"}).parts[0].given == ["512"]


def test_values_as_they_are_typed() -> None:
    assert [typed(value, "B") for value in (1536, 0.5, True, [4, 1], [], "swap")] == [
        "1,536 B",
        "0.5 B",
        "yes",
        "4, 1",
        "none",
        "swap",
    ]


def test_what_is_asked_for() -> None:
    assert reply_keys(draw(NUMBERS, 1)) == ["steps", "size"]
    assert reply_keys(draw(ALL, 1)) == ["choice"]
    assert reply_keys(draw(ORDER, 1)) == ["order"]
