"""Experiments by name: bounds of arguments and declared fields of results."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.registry import (
    BadArguments,
    Experiment,
    ResultField,
    UnknownExperiment,
    get,
    names,
    source_file,
)
from quizzes.lint import needs_model
from quizzes.question_bank import load_bank
from tests.unfilled import left_to_fill

ROOT = Path(__file__).resolve().parents[2]


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


OWN = """
from quizzes.experiments import Context, Result, experiment

@experiment("E13")  # catalogue codes
def commented() -> Result:
    '''Count.

    Returns:
        seed
    '''
    return Result(seed=-1)

@experiment(
    "E13",  # ends ( in a comment
    seconds=1,
)
# the context has another name
def contextual(context: Context, more: int = 1) -> Result:
    '''Count.

    Returns:
        seed
    '''
    return Result(seed=context.seed + more)

EXAMPLE = '''
@experiment()
def quoted() -> Result:
'''
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a topic with experiments of the user."""
    topic = tmp_path / "own" / "trials"
    topic.mkdir(parents=True)
    (topic / "mine.py").write_text(OWN)
    monkeypatch.setenv("PREP_EXPERIMENTS", str(topic.parent))
    return topic


def test_comments_at_a_decorator_do_not_hide_an_experiment(own: Path) -> None:
    assert {"trials.commented", "trials.contextual"} <= set(names())
    assert get("trials.commented").run(Context()).seed == -1


def test_broken_files_of_a_topic_do_not_break_its_experiments(own: Path) -> None:
    (own / ".#mine.py").symlink_to("someone@somewhere.1234")
    (own / "latin.py").write_bytes(b"# \xe4\n")
    assert "trials.commented" in names()


def test_a_name_that_its_file_does_not_register_is_unknown(own: Path) -> None:
    with pytest.raises(UnknownExperiment, match=r"the file of trials\.quoted registers no such experiment"):
        get("trials.quoted")


def test_the_context_is_known_by_its_type_too(own: Path) -> None:
    found = get("trials.contextual")
    assert list(found.parameters) == ["more"]
    assert found.run(Context(seed=3), **found.check({"more": 2})).seed == 5


@pytest.mark.parametrize(
    ("name", "wanted"),
    [(f"capacity.{name}", False) for name in ("plan", "plan_change", "concurrency")]
    + [(f"performance.{name}", False) for name in ("host_overlap", "tokeniser_load")]
    + [("performance.cpu_path", True), ("performance.gemm_tokens", True)],
)
def test_only_experiments_with_tensors_count_as_slow(name: str, wanted: bool) -> None:
    assert needs_model(name) == wanted


@cache
def cited() -> dict[str, str]:
    """Return the texts that may use an experiment: those of questions with oracles, of claims and cards, of tests."""
    bank, oracles = load_bank(), ""
    for question in map(bank.question, bank.entries):
        if question.experiment is not None and question.oracle:
            oracles += f"{question.experiment.run}\n"
    yaml = [file for folder in ("claims", "cards") for file in (ROOT / "quizzes" / folder).rglob("*.yaml")]
    tests = (ROOT / "tests" / "quizzes").glob("*.py")
    claims, named = ("\n".join(file.read_text() for file in files) for files in (yaml, tests))
    return {"oracles": oracles, "claims": claims, "tests": named}


@pytest.mark.parametrize("name", names())
def test_it_says_what_it_measures_and_its_result_is_checked(name: str) -> None:
    """An exact result needs a second opinion: an oracle of a question, the test of a claim, or a test."""
    found, texts, short = get(name), cited(), name.partition(".")[2]
    is_checked = any(re.search(rf"\b{name}\b", texts[kind]) for kind in ("oracles", "claims"))
    is_checked = is_checked or re.search(rf"\b{short}\b", texts["tests"]) is not None
    missing = left_to_fill(source_file(name))
    if found.determinism == "exact" and not is_checked:
        missing.append("no oracle of a question, no claim and no test in tests/quizzes checks its result")
    assert not missing, "\n".join(missing)
