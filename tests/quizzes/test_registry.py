"""Experiments by name: bounds of arguments and declared fields of results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.registry import BadArguments, Experiment, ResultField, get


@pytest.fixture(scope="module")
def sample() -> Experiment:
    @experiment("E13")
    def test_sample(
        ctx: Context,
        slots: int = arg(4, 1, 64),
        share: float | None = arg(None, above=0, high=1),
        lens: list[int] = arg([3, 5], 1, 9, count=(1, 3)),
        words: list[str] = arg(["a"], chars=(1, 2), count=(0, 2)),
        model: str = "shop",
    ) -> Result:
        """Do nothing.

        Returns:
            One sentence for all of them.
            first, second [steps]: Two fields with a unit and a meaning
                that goes on.
            third
        """
        return Result(first=slots, second=len(lens), third=model)

    return get("quizzes.test_sample")


def test_defaults_are_plain_values_for_callers_and_for_checks(sample: Experiment) -> None:
    assert sample.check({}) == {"slots": 4, "share": None, "lens": [3, 5], "words": ["a"], "model": "shop"}
    assert vars(sample.run(Context())) == {"first": 4, "second": 2, "third": "shop"}


@pytest.mark.parametrize(
    "bad",
    [{"slots": 0}, {"slots": 65}, {"share": 0.0}, {"share": 1.1}, {"lens": []}, {"lens": [1] * 4}]
    + [{"lens": [10]}, {"words": [""]}, {"words": ["abc"]}, {"words": ["a"] * 3}, {"slot": 1}],
)
def test_values_out_of_bounds_are_refused(sample: Experiment, bad: dict[str, Any]) -> None:
    with pytest.raises(BadArguments, match=next(iter(bad))):
        sample.check(bad)


@pytest.mark.parametrize("good", [{"slots": 64}, {"share": 1.0}, {"lens": [9, 1, 1]}, {"words": []}])
def test_bounds_themselves_are_allowed(sample: Experiment, good: dict[str, Any]) -> None:
    assert sample.check(good).items() >= good.items()


def test_the_docstring_declares_title_note_fields_units_and_meanings(sample: Experiment) -> None:
    meaning = "Two fields with a unit and a meaning that goes on."
    assert sample.title == sample.doc == "Do nothing."
    assert sample.result_note == "One sentence for all of them."
    fields = [ResultField(name, "steps", meaning) for name in ("first", "second")]
    assert sample.result_fields == [*fields, ResultField("third", "", "")]
    assert sample.result_units == {"first": "steps", "second": "steps", "third": ""}


def test_every_experiment_and_oracle_that_a_question_or_claim_cites_exists() -> None:
    root = Path(__file__).resolve().parents[2]
    cited = {
        path
        for folder in ("quizzes/bank", "quizzes/claims")
        for file in (root / folder).rglob("*.yaml")
        for path in re.findall(r"quizzes/(?:experiments|oracles)/[\w/]+\.py", file.read_text())
    }
    assert len(cited) > 15 and sorted(path for path in cited if not (root / path).is_file()) == []
