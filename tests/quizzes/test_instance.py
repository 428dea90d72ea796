"""Draws of a seed: always the same, within their bounds, fit for `require`; and templates that cannot reach out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quizzes.expressions import evaluate
from quizzes.instance import Instance, QuestionError, draw, render_text
from quizzes.question import Question
from tests.quizzes import made_up

untimed = settings(deadline=None)
SEEDS = st.integers(0, 10**9)


def question(**fields: Any) -> Question:
    usual = {
        "kind": "numeric",
        "prompt": "{{ blocks }} blocks of {{ size }}?",
        "answers": [{"id": "x", "type": "int", "expect": "=blocks * size"}],
    }
    return made_up.question(**(usual | fields))


DRAWN = question(
    params={
        "blocks": {"int": {"lo": 10, "hi": 40, "step": 5}},
        "size": {"choice": [8, 16, 32]},
        "lens": {"ints": {"n": 4, "lo": 1, "hi": 9}},
        "share": {"float": {"lo": 0.1, "hi": 0.9, "digits": 2}},
        "total": {"expr": "=blocks * size"},
        "fixed": {"const": 7},
    },
    require=["total >= 160", "len(set(lens)) > 1"],
)
CHOICE = question(
    kind="choice",
    prompt="Which?",
    answers=[],
    choices=[{"id": letter, "text": letter, "right": letter == "b"} for letter in "abcd"],
)
ORDER = question(
    kind="order", prompt="Order", answers=[], items=[{"id": letter, "text": letter} for letter in "abcd"]
)


@untimed
@given(SEEDS)
def test_draws_lie_within_their_bounds_and_meet_what_is_required(seed: int) -> None:
    params = draw(DRAWN, seed).params
    assert params["blocks"] in range(10, 41, 5) and params["size"] in (8, 16, 32) and params["fixed"] == 7
    assert len(params["lens"]) == 4 and all(1 <= each <= 9 for each in params["lens"])
    assert 0.1 <= params["share"] <= 0.9 and round(params["share"], 2) == params["share"]
    assert params["total"] == params["blocks"] * params["size"]
    assert all(evaluate(condition, params) for condition in DRAWN.require)


def test_both_ends_of_a_range_are_drawn() -> None:
    drawn = {draw(DRAWN, seed).params["blocks"] for seed in range(300)}
    assert drawn == set(range(10, 41, 5))


@untimed
@given(SEEDS)
def test_a_seed_draws_the_same_always(seed: int) -> None:
    again = Question.model_validate(DRAWN.model_dump(by_alias=True, exclude_unset=True))
    assert draw(DRAWN, seed).params == draw(again, seed).params
    for asked in (CHOICE, ORDER):
        one, two = draw(asked, seed), draw(asked, seed)
        assert (one.choices(), one.items()) == (two.choices(), two.items())


def test_a_seed_draws_the_same_in_another_process() -> None:
    program = (
        "from tests.quizzes.test_instance import DRAWN, CHOICE, draw\n"
        "print([draw(DRAWN, s).params for s in range(5)], [c.id for c in draw(CHOICE, 3).choices()])\n"
    )
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    here = [draw(DRAWN, seed).params for seed in range(5)]
    assert found.stdout.strip() == f"{here} {[choice.id for choice in draw(CHOICE, 3).choices()]}"


def test_seeds_and_revisions_draw_different_figures() -> None:
    drawn = {repr(draw(DRAWN, seed).params) for seed in range(20)}
    assert len(drawn) == 20
    changed = DRAWN.model_copy(update={"revision": DRAWN.revision + 1})
    assert [draw(changed, s).params for s in range(5)] != [draw(DRAWN, s).params for s in range(5)]


def test_what_is_shown_is_shuffled_by_the_seed_and_complete() -> None:
    shown = {tuple(choice.id for choice in draw(CHOICE, seed).choices()) for seed in range(40)}
    assert len(shown) > 10 and all(sorted(each) == list("abcd") for each in shown)
    places = [draw(CHOICE, seed).choices().index(CHOICE.choices[1]) for seed in range(200)]
    assert all(places.count(place) >= 25 for place in range(4))
    ordered = CHOICE.model_copy(update={"shuffle": False})
    assert [choice.id for choice in draw(ordered, 1).choices()] == list("abcd")
    assert len({tuple(draw(ORDER, seed).items()) for seed in range(40)}) > 10


def test_what_can_never_be_drawn_is_named() -> None:
    impossible = DRAWN.model_copy(update={"require": ["blocks > 100"]})
    with pytest.raises(QuestionError, match=r"memory\.made_up:1:3: `require` held in none of 100 draws"):
        draw(impossible, 3)


def test_what_is_right_is_computed_from_the_draw() -> None:
    instance = draw(DRAWN, 4)
    assert instance.expected() == {"x": instance.params["blocks"] * instance.params["size"]}
    assert draw(CHOICE, 4).expected() == {"choice": ["b"]}
    assert draw(ORDER, 4).expected() == {"order": list("abcd")}


def test_a_choice_is_right_by_what_its_expression_says_of_the_result() -> None:
    choices = [
        {"id": "up", "text": "up", "right": "=result.steps > n"},
        {"id": "same", "text": "same", "right": "=result.steps == n"},
        {"id": "down", "text": "down", "right": "=result.steps < n"},
    ]
    asked = question(kind="choice", prompt="?", answers=[], params={"n": {"const": 5}}, choices=choices)
    assert draw(asked, 1).expected({"steps": 9}) == {"choice": ["up"]}
    assert draw(asked, 1).expected({"steps": 5}) == {"choice": ["same"]}


# ---- templates --------------------------------------------------------------------------------------------------


def test_figures_are_written_as_people_read_them() -> None:
    names = {"n": 1234567, "half": 0.5, "gib": 3 * 2**30, "mib": 3 * 2**20, "result": {"steps": 7}}
    text = "{{ n | commas }} {{ half | pct }} {{ gib | gib }} {{ mib | mib }} {{ result.steps }}"
    assert render_text(text, names) == "1,234,567 50.0 % 3.00 GiB 3.0 MiB 7"


@pytest.mark.parametrize(
    "text",
    [
        "{{ nothing }}",
        "{{ x.nothing }}",
        "{{ x.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ '%s'.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ x|attr('__class__')|attr('__base__') }}",
        "{% for n in range(10 ** 9) %}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ x.append(3) ",
    ],
)
def test_a_template_that_reaches_out_is_refused_and_named(text: str) -> None:
    instance = Instance(DRAWN, 3, {"x": 1})
    with pytest.raises(QuestionError, match=r"memory\.made_up \(seed 3\)"):
        instance.render(text)


@untimed
@given(st.text(max_size=60))
def test_any_template_renders_or_is_named(text: str) -> None:
    try:
        assert isinstance(Instance(DRAWN, 3, {"x": 1}).render(text), str)
    except QuestionError as error:
        assert "memory.made_up" in str(error)
