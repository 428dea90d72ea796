"""The bank as a whole: sound in form, true for a few seeds (for forty in the slow test), and nothing left out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.new.question import skeleton
from quizzes import lint
from quizzes.experiments import registry
from quizzes.expressions import is_expression
from quizzes.grading import ParseError, parse
from quizzes.grading.check import share_of_points
from quizzes.instance import draw
from quizzes.question import Answer, Question
from quizzes.question_bank import codes, load_bank
from tests.quizzes.runs import run_once

BANK = load_bank()
NUMBERED = {code: text for code, text in codes().items() if code.startswith("Q")}
REVERSE = [f"Q{number}" for number in range(128, 135)]
"""Questions that the candidate asks."""
PAIRS = codes().keys() - NUMBERED.keys()
"""Pairs of statements in prep guides that contradict each other."""
ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "quizzes" / "question.schema.json"


def seeds_of(question: Question, count: int) -> range:
    """One for what is measured: it may come out differently each time, and costs seconds."""
    exact = question.experiment is None or registry.get(question.experiment.run).determinism == "exact"
    return range(count if exact else 1)


def test_every_file_is_a_question() -> None:
    assert BANK.problems == []


def test_there_are_enough_and_machines_decide_most() -> None:
    graded = sum(BANK.question(entry.id).is_machine_graded for entry in BANK)
    assert len(BANK) >= 220 and graded / len(BANK) >= 0.8


def test_the_readme_says_how_many_answers_are_computed() -> None:
    questions = [BANK.question(entry.id) for entry in BANK]
    run = sum(question.experiment is not None for question in questions)
    computed = sum(
        question.experiment is None and any(is_expression(answer.expect) for answer in question.answers)
        for question in questions
    )
    pattern = r"(\d+) interview questions \(for (\d+) an experiment on the engine runs .* for (\d+) a formula"
    said = re.search(pattern, " ".join((ROOT / "README.md").read_text().split()))
    assert said is not None
    assert [int(number) for number in said.groups()] == [len(questions), run, computed]


def test_every_numbered_question_is_covered() -> None:
    covered = {number for entry in BANK for number in entry.covers}
    assert list(NUMBERED) == [f"Q{number:03d}" for number in range(1, 151)]
    assert sorted(NUMBERED.keys() - covered) == [] and sorted(covered - NUMBERED.keys()) == []


def test_every_numbered_question_has_an_interview_answer() -> None:
    silent = [number for number in NUMBERED if BANK.question(BANK.covering(number)[0]).interview is None]
    assert silent == []


def test_every_numbered_question_has_an_item_that_a_machine_grades() -> None:
    decided = {number for entry in BANK if entry.kind not in ("free", "design") for number in entry.covers}
    assert sorted(NUMBERED.keys() - decided) == []


def test_every_spoken_answer_goes_deeper_with_statements_and_not_with_questions() -> None:
    shallow = [
        question.id
        for question in map(BANK.question, BANK.entries)
        if question.interview and question.status != "retired"
        if len(question.interview.deep) < 80 or question.interview.deep.count("?") > 1
    ]
    assert shallow == []


def spoken(question_id: str) -> str:
    """Return all sentences of a spoken answer on one line."""
    said = BANK.question(question_id).interview
    assert said is not None
    return " ".join(f"{said.short} {said.long} {said.deep}".split())


def test_figures_in_spoken_answers_are_those_of_the_experiments() -> None:
    gate = run_once("capacity.pass_rate", {"gate": 0.99})
    assert (
        f"one-sided 95 % bound needs {gate['cases_one_sided']} cases without an error, a two-sided Wilson interval "
        f"that lies above the gate {gate['cases_needed']}." in spoken("capacity.validate_quantised")
    )
    table = run_once("attention.table_traffic", {"context": 4096, "block_size": 1})
    assert f"blocks of 1 cost {100 * table['table_share']:.1f} % in bytes" in spoken(
        "attention.kernel_indirection"
    )
    sent = run_once("disaggregation.transfer", {"prompt": 4000, "tp": 4})
    assert f"{sent['transfer_ms']:.0f} ms over four NDR links at 80 % of their rate" in spoken(
        "disaggregation.explain_both_sides"
    )
    cards = [
        run_once(
            "capacity.plan",
            {
                "model": "llama-3.1-8b",
                "gpu": gpu,
                "max_num_seqs": 64,
                "max_num_batched_tokens": 2048,
                "max_model_len": 4096,
            },
        )
        for gpu in ("a10g", "h100")
    ]
    lab = spoken("capacity.explain_one_gpu_lab")
    assert f"some {round(cards[0]['kv_tokens'], -3):,} tokens: nine requests of 4,096" in lab
    assert (
        9 <= cards[0]["max_concurrency"] < 10
        and "well over 400,000" in lab
        and cards[1]["kv_tokens"] > 440_000
    )


def test_reverse_questions_say_what_good_and_bad_replies_reveal() -> None:
    asked = [
        entry.id
        for entry in BANK
        if entry.kind == "free" and "reverse-question" in BANK.question(entry.id).tags
    ]
    assert sorted(number for name in asked for number in BANK.entries[name].covers) == REVERSE
    for name in asked:
        question = BANK.question(name)
        assert "What does each reply reveal" in question.prompt, name
        short = question.interview.short.lower()
        assert all(word in short for word in ("good", "mediocre", "alarming")), name


def test_every_contradiction_has_a_question() -> None:
    assert PAIRS == {f"X{number}" for number in range(1, 31)} | {f"Y{number}" for number in range(1, 25)}
    covered = {pair for entry in BANK for pair in BANK.question(entry.id).contradictions}
    assert sorted(PAIRS - covered, key=lambda pair: (pair[0], int(pair[1:]))) == []


@pytest.mark.parametrize("question_id", sorted(BANK.entries))
def test_the_form_is_sound(question_id: str) -> None:
    found = list(lint.lint_form(BANK.question(question_id), BANK))
    assert not found, "\n".join(map(str, found))


def counts_only(question_id: str) -> bool:
    """Whether it is decided without a model: those that run one are in the slow test."""
    experiment = BANK.question(question_id).experiment
    return experiment is None or not lint.needs_model(experiment.run)


@pytest.mark.parametrize(
    "question_id", [*filter(counts_only, sorted(BANK.entries))][::8]
)  # all of them: slow, below
def test_engine_and_oracle_agree_for_two_seeds(question_id: str) -> None:
    question = BANK.question(question_id)
    findings = [f for f in lint.lint_truth(question, run_once, range(2)) if f.seed is not None]
    assert findings == []


@pytest.mark.slow
@pytest.mark.parametrize("question_id", sorted(BANK.entries))
def test_engine_and_oracle_agree(question_id: str) -> None:
    """For the seeds of `prep bank lint --run`; for an eighth of them, too few to count draws, if something runs."""
    question = BANK.question(question_id)
    whole = question.experiment is None
    findings = lint.lint_truth(
        question, run_once, seeds_of(question, lint.SEEDS if whole else lint.SEEDS // 8)
    )
    assert [finding for finding in findings if whole or finding.seed is not None] == []


def test_no_place_in_the_list_is_a_good_guess() -> None:
    """Over all choice questions and five seeds, the right option stands everywhere about equally often."""
    places: dict[float, int] = {}
    for entry in BANK:
        question = BANK.question(entry.id)
        right = [choice.id for choice in question.choices if choice.right is True]
        if entry.kind != "choice" or len(right) != 1 or len(question.choices) != 4:
            continue
        for seed in range(5):
            place = [choice.id for choice in draw(question, seed).choices()].index(right[0])
            places[place] = places.get(place, 0) + 1
    total = sum(places.values())
    assert total and max(places.values()) / total < 0.4, places


@pytest.mark.slow
def test_the_longest_option_is_not_the_right_one() -> None:
    """Length gives nothing away: over all choice questions the right option is the longest in less than half."""
    longest = total = 0
    for entry in BANK:
        question = BANK.question(entry.id)
        if entry.kind != "choice" or (question.experiment and lint.needs_model(question.experiment.run)):
            continue
        for seed in range(2):
            instance = draw(question, seed)
            result = run_once(question.experiment.run, instance.run_args()) if question.experiment else None
            texts = {choice.id: instance.render(choice.text) for choice in question.choices}
            total += 1
            longest += len(texts[instance.expected(result)["choice"][0]]) == max(map(len, texts.values()))
    assert longest / total < 0.5, f"{longest} of {total}"


def test_the_schema_for_editors_is_current() -> None:
    assert json.loads(SCHEMA.read_text()) == Question.model_json_schema(by_alias=True), (
        "prep bank schema > quizzes/question.schema.json"
    )


def test_explained_questions_say_it_in_thirty_seconds_and_in_two_minutes() -> None:
    """150 words a minute are spoken; some slack."""
    for entry in BANK:
        view = BANK.question(entry.id).interview
        if view is not None:
            assert len(view.short.split()) <= 110, entry.id
            assert len(view.long.split()) <= 380, entry.id
            assert len(view.long.split()) > len(view.short.split()), entry.id


def test_a_question_with_an_error_names_its_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "bank" / "batching"
    folder.mkdir(parents=True)
    good = Path(__file__).resolve().parents[2] / "quizzes/bank/batching/static_vs_continuous.yaml"
    (folder / "static_vs_continuous.yaml").write_text(good.read_text())
    (folder / "wrong_type.yaml").write_text(good.read_text().replace("difficulty: 2", "difficulty: no"))
    (folder / "no_yaml.yaml").write_text("schema: 1\nid: [batching\n")
    (folder / "elsewhere.yaml").write_text(good.read_text())
    bank = load_bank(tmp_path / "bank")
    assert list(bank.entries) == ["batching.static_vs_continuous"]
    told = {problem.path.split("/")[-1]: str(problem) for problem in bank.problems}
    line = 1 + good.read_text().splitlines().index("difficulty: 2")
    assert f"wrong_type.yaml:{line}: difficulty" in told["wrong_type.yaml"]
    assert "not valid YAML" in told["no_yaml.yaml"] and ":2:" in told["no_yaml.yaml"]
    assert "its path implies" in told["elsewhere.yaml"]


@pytest.mark.parametrize(
    "kind", ["predict", "numeric", "choice", "multi", "order", "debug", "free", "design", "code"]
)
def test_a_new_question_has_its_form_and_lint_names_each_text_that_is_not_written(kind: str) -> None:
    [text] = skeleton("memory.my_question", kind).values()
    question = Question.model_validate(yaml.safe_load(text))
    assert question.kind == kind
    found = [finding.message for finding in lint.lint_form(question) if "fill in" in finding.message]
    assert len(found) == text.count("FILL IN") and "title: fill in the topic in one line" in found
    no_program = "there is no program quizzes/autopsies/my_question: given.py, solution.py, checks.py"
    assert [f.message for f in lint.lint_form(new_question(kind))] == ([no_program] if kind == "code" else [])


def new_question(kind: str, /, **changed: Any) -> Question:
    """Return a question of `prep new` with all of its texts written."""
    [text] = skeleton("memory.my_question", kind).values()
    return Question.model_validate({**yaml.safe_load(text.replace("FILL IN ", "")), **changed})


def test_lint_finds_what_it_is_for() -> None:
    """A question with one fault of each kind: each is found."""
    faults: dict[str, dict[str, Any]] = {
        "oracle says": {"oracle": {"steps": "=max(lens)"}},
        "no oracle": {"oracle": {}},
        "1 hints; difficulty 3 needs 2": {"difficulty": 3},
        "source 'a paper' has no as_of date": {"sources": [{"ref": "a paper"}]},
        "a hint contains the answer": {
            "params": {"slots": {"const": 2}, "lens": {"const": [30, 40, 50, 60]}},
            "hints": [{"text": "It is 100."}],
        },
        "trivial guess": {"params": {"slots": {"const": 1}, "lens": {"ints": {"n": 1, "lo": 20, "hi": 60}}}},
        "mistake same is right": {
            "mistakes": [
                {"id": "same", "when": {"answer": "steps", "equals": "=result.continuous_steps"}, "say": "x"}
            ]
        },
        "`require` held in none": {"require": ["slots > 100"]},
        "without a witness": {
            "followups": [
                {
                    "ask": "x",
                    "experiment": {"run": "batching.static_vs_continuous", "args": {"lens": "=reply"}},
                    "pass": "result.speedup > 1",
                }
            ]
        },
        "leads nowhere": {"followups": [{"ask": "x"}]},
        "2 follow-ups lead to memory.holes": {
            "followups": [{"ask": ask, "goto": "memory.holes"} for ask in "xy"]
        },
        "cannot be read in": {"prompt": "word " * 3000},
        "is undefined": {"explain": "{{ nothing }}"},
        "`holds` is empty": {"explain": "Those are {{ result.continuous_steps }} steps, fewer than before."},
        "does not hold": {"explain": "In all 3 x {{ result.continuous_steps }} = 1 step."},
        "is the expected value itself": {
            "answers": [{"id": "steps", "type": "int", "expect": "=len(lens)"}],
            "oracle": {"steps": "=len(lens)"},
        },
    }
    for words, change in faults.items():
        question = new_question("predict", **change)
        found = [*lint.lint_form(question), *lint.lint_truth(question, run_once, range(6))]
        assert any(words in str(finding) for finding in found), (words, found)
    question = new_question("predict")
    assert [*lint.lint_form(question), *lint.lint_truth(question, run_once, range(6))] == []


def spellings(value: float, answer: Answer) -> list[str]:
    """Return texts for one amount; a whole number is exact, a float may be rounded to four digits."""
    unit = answer.unit or ""
    texts = [f"{value}", f"{value} {unit}", f"{value:,} {unit}", f"about {value}{unit}", f"={value}"]
    if answer.type == "int":
        return [*texts, f"{value}.0", f"{value:.12e}"]
    factors = {"%": ("", 100), "s": ("ms", 1e-3), "ms": ("s", 1e3), "GiB": ("MiB", 2**-10), "us": ("ms", 1e3)}
    other, factor = factors.get(unit, (unit, 1))
    return [
        *texts,
        f"{value:.4g}",
        f"{value:.4g} {unit}",
        f"{value / factor:.8g} {other}",
        f"{value:.3e} {unit}",
    ]


def test_no_spelling_of_a_right_amount_is_scored_wrong() -> None:
    """Every numeric answer that a formula gives: each spelling is right, or the learner is asked again."""
    asked = 0
    formulas = [q for q in map(BANK.question, BANK.entries) if q.experiment is None]
    for question in formulas:
        instance = draw(question, 3)
        expected = instance.expected()
        for answer in (each for each in question.answers if each.type in ("int", "float")):
            for text in spellings(expected[answer.id], answer):
                asked += 1
                try:
                    value = parse(text, answer).value
                except ParseError as error:
                    assert "may be" in error.what or "two ways" in error.what, (question.id, text, error)
                else:
                    assert share_of_points(value, expected[answer.id], answer) == 1, (
                        question.id,
                        text,
                        value,
                    )
    assert asked > 1500


def test_a_question_about_a_live_run_says_what_holds_for_vllm() -> None:
    question = BANK.question("structured_output.broken_json_incident")
    assert list(lint.lint_form(question)) == []
    unlabelled = question.model_copy(update={"explain": question.explain.replace("vLLM", "It")})
    [finding] = lint.lint_form(unlabelled)
    assert "live engine" in finding.message


def test_things_to_order_are_never_shown_in_the_order_in_which_they_are_written() -> None:
    for entry in BANK:
        question = BANK.question(entry.id)
        written = [item.id for item in question.items]
        for seed in range(50 if written else 0):
            shown = draw(question, seed).items()
            assert shown != written and sorted(shown) == sorted(written), (entry.id, seed)


def test_lint_finds_faults_of_options_and_of_right_answers_that_are_refused() -> None:
    """Faults that only a draw shows."""
    base = {"params": {"n": {"int": {"lo": 1, "hi": 9}}}}
    options = [
        {"id": letter, "text": letter, "why": "it is not", "right": letter == "b"} for letter in "abcd"
    ]
    same = [{**option, "text": "{{ n }}" if option["id"] in "ab" else option["text"]} for option in options]
    two = [{**option, "right": option["id"] in "bc" and "=n > 0"} for option in options]
    word = {"kind": "numeric", "choices": [], "answers": [{"id": "x", "type": "word", "expect": "!?"}]}
    for words, change in {
        "two options read the same": {"choices": same},
        "2 choices are right": {"choices": two},
        "is refused": word,
    }.items():
        question = new_question("choice", **{**base, "choices": options, **change})
        found = [str(finding) for finding in lint.lint_truth(question, run_once, range(3))]
        assert any(words in finding for finding in found), (words, found)
    sound = new_question("choice", **base, choices=options)
    found = [
        finding.message for finding in lint.lint_truth(sound, run_once, range(3)) if finding.seed is not None
    ]
    assert found == []


def test_lint_says_how_often_a_mistake_or_a_witness_fails() -> None:
    """The bounds themselves: one wrong oracle in six seeds is told, and a witness that misses."""

    follow_up = {
        "ask": "x",
        "experiment": {"run": "batching.static_vs_continuous", "args": {"slots": 1, "lens": [4, 4]}},
        "pass": "result.speedup > 100",
        "witness": {"n": 1},
    }
    question = new_question("predict", followups=[follow_up])
    found = [str(finding) for finding in lint.lint_truth(question, run_once, range(2))]
    assert sum("witness does not meet" in finding for finding in found) == 2, found
    assert not lint.agree(100, 101) and lint.agree(100.0, 100.00001) and not lint.agree(1, True)


def test_every_oracle_is_asked() -> None:
    """A function of quizzes/oracles that no question, oracle or test uses is dead."""
    import ast
    import re

    here = Path(__file__).resolve().parent
    folder = here.parents[1] / "quizzes"
    asked = "\n".join(path.read_text() for path in folder.glob("bank/*/*.yaml"))
    code = "\n".join(path.read_text() for path in [*folder.glob("oracles/*.py"), *here.glob("*.py")])
    dead = [
        f"{path.stem}.{node.name}"
        for path in folder.glob("oracles/*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and f"{path.stem}.{node.name}" not in asked
        and len(re.findall(rf"\b{node.name}\b", code)) == 1
    ]
    assert dead == []


def test_a_why_that_stands_beside_either_outcome_does_not_deny_one_of_them() -> None:
    """In the late variant of `ttft_or_itl` the victim has not spoken: no text may say that it has."""
    question = BANK.question("preemption.ttft_or_itl")
    late = next(found for found in (draw(question, seed) for seed in range(40)) if found.params["late"])
    result = run_once(question.experiment.run, late.run_args())
    assert result["victim_had_tokens"] == 0
    told = [
        late.render(text, result=result) for text in (question.explain, *(c.why for c in question.choices))
    ]
    assert not any("long out" in text or "wait in the queue meanwhile" in text for text in told)


def test_no_oracle_names_the_answer_by_the_name_of_a_setting() -> None:
    """An oracle such as `method == 'gptq'` repeats what the author expects of the run and computes nothing."""
    named = [
        question.id
        for question in map(BANK.question, BANK.entries)
        if question.experiment is not None
        for oracle in question.oracle.values()
        if re.fullmatch(r"=\s*\w+\s*(==|\bin\b)\s*(['\"\[(]).*", oracle)
    ]
    assert named == []
