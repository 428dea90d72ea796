"""Check questions: the format of their files, their form and references, and with `run` their truth over many seeds.

    python -m quizzes.lint quizzes/bank/batching/*.yaml          for authors; the whole bank: prep bank lint --run

format  lines of at most 120 columns, as `prep bank lint --fix` writes them
form    hints do not contain the answer, options differ, every wrong option says why, the text fits the minutes,
        every follow-up leads to a run or another question, an explanation that compares computed figures has `holds`,
        a question about a live run says what is this engine's choice and what vLLM does
truth   over 40 seeds: `require` can be met, experiment and oracle agree, exactly one choice is right, no mistake is a
        right answer, trivial guesses are wrong, a challenge has a witness, every text renders, statements in `holds`
        hold, no text contradicts its own figures (`lint_texts.py`), and numbers that the question does not show never
        decide between the options
"""

import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

import yaml

from prep_common.paths import write_atomically
from prep_common.text import unfilled
from quizzes.autopsies.programs import programs
from quizzes.experiments.registry import get, source_file
from quizzes.expressions import dotted, evaluate, is_expression, resolve
from quizzes.grading import ParseError, grade, reply_keys
from quizzes.grading.grade import typed_replies
from quizzes.instance import Instance, draw, draw_params
from quizzes.lint_texts import false_statements, needs_statement
from quizzes.question import Answer, Question
from quizzes.question_bank import BANK, Bank, load_bank
from quizzes.yaml_files import read_file
from quizzes.yaml_format import WIDTH, formatted, long_lines

SEEDS = 40
WORDS_PER_MINUTE = 220
TRIVIAL_SHARE = 0.2
MISTAKE_SHARE = 0.8
HIDDEN_DRAWS = 3
"""Seeds whose hidden numbers are drawn anew, and how often: 9 more runs of a choice question."""
HINTS = {1: 1, 2: 1, 3: 2, 4: 2, 5: 3}
"""Difficulty -> number of hints."""
FIRST_DOCUMENT = {f"Q{number:03d}" for number in range(1, 21)}
"""Numbered questions that the first source document asks; it gives three hints to each."""
_SAYS_WHERE = re.compile(r"vLLM|[Tt]his engine|demo|[Tt]his machine")
RunExperiment = Callable[[str, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Finding:
    """A fault of a question, for one seed or for all."""

    question: str
    seed: int | None
    message: str

    def __str__(self) -> str:
        at = "" if self.seed is None else f" (seed {self.seed})"
        return f"{self.question}{at}: {self.message}"


def lint_form(question: Question, bank: Bank | None = None) -> Iterator[Finding]:
    """Yield the faults that show without a draw. bank: resolves references to other questions."""

    def finding(message: str) -> Finding:
        return Finding(question.id, None, message)

    for place, text in _texts(question.model_dump(by_alias=True)):
        yield from (finding(f"{place}: {what}") for what in unfilled(text))
    if question.code is not None and question.code.folder not in programs():
        yield finding(
            f"there is no program quizzes/autopsies/{question.code.folder}: given.py, solution.py, checks.py"
        )
    words = len(question.prompt.split()) + len(question.exhibit.split())
    if words / WORDS_PER_MINUTE > question.minutes:
        yield finding(f"{words} words cannot be read in {question.minutes:g} min")
    # three for explained answers to the first source document's questions
    explained = question.interview is not None and FIRST_DOCUMENT.intersection(question.covers)
    if len(question.hints) < (wanted := 3 if explained else HINTS[question.difficulty]):
        yield finding(f"{len(question.hints)} hints; difficulty {question.difficulty} needs {wanted}")
    if not question.holds and (said := needs_statement(question.explain)):
        yield finding(f"the explanation compares a computed figure and `holds` is empty: {said[:80]!r}")
    if not question.followups:
        yield finding("no follow-up")
    for follow_up in question.followups:
        if follow_up.goto is None and follow_up.experiment is None:
            yield finding(
                f"a follow-up leads nowhere, it needs goto or an experiment: {follow_up.ask[:50]!r}"
            )
    targets = Counter(follow_up.goto for follow_up in question.followups if follow_up.goto)
    yield from (finding(f"{count} follow-ups lead to {goto}") for goto, count in targets.items() if count > 1)
    for source in question.sources:
        if not (source.as_of or source.is_ours):
            yield finding(f"source {source.ref!r} has no as_of date")
    for choice in question.choices:
        if not choice.why and choice.right is not True:
            yield finding(f"choice {choice.id} does not say why")
    yield from (finding(message) for message in _oracles(question))
    if question.experiment is not None and is_live(question.experiment.run):
        if not _SAYS_WHERE.search(f"{question.prompt} {question.explain}"):
            yield finding("runs a live engine and says neither `this engine`, `demo` nor how vLLM does it")
    if bank is not None:
        for follow_up in question.followups:
            target = bank.entries.get(follow_up.goto or "")
            if follow_up.goto and (
                target is None or target.kind in ("free", "design") or target.id == question.id
            ):
                yield finding(
                    f"a follow-up leads to {follow_up.goto}, which is not another machine-graded question"
                )
        for point in question.keypoints:
            for probe in point.probes:
                if probe not in bank:
                    yield finding(f"key point {point.id}: there is no question {probe}")
                elif bank.entries[probe].kind in ("free", "design"):
                    yield finding(f"key point {point.id}: the probe {probe} is itself free text")
            if point.must and not point.probes:
                yield finding(f"key point {point.id} must be there and has no probe")


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in the fields of a question, each with its path, such as hints[0].text."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{number}]")


def _oracles(question: Question) -> Iterator[str]:
    """Yield answers that nothing independent computes; measurements have no oracle."""
    measured = question.experiment is not None and not is_exact(question)
    for answer in question.answers:
        oracle = question.oracle.get(answer.id)
        if oracle is None:
            if is_expression(answer.expect) and not measured:
                yield f"answer {answer.id} has no oracle"
        elif oracle == answer.expect:
            yield f"the oracle of {answer.id} is the expected value itself"


def lint_truth(question: Question, run: RunExperiment, seeds: Iterable[int]) -> Iterator[Finding]:
    """Yield the faults that show only when the question is drawn and its experiment runs."""
    seeds = list(seeds)
    trivial = 0
    harmless = {mistake.id: 0 for mistake in question.mistakes}
    drawn: set[str] = set()
    for seed in seeds:
        try:
            instance = draw(question, seed)
            drawn.add(repr(instance.params))
            result = run(question.experiment.run, instance.run_args()) if question.experiment else None
            expected = instance.expected(result)
            for message in _at_seed(instance, result, expected):
                yield Finding(question.id, seed, message)
            if seed < HIDDEN_DRAWS:
                yield from _coin_flips(instance, run, expected)
            trivial += _is_guessable(instance, expected, result)
            for mistake in question.mistakes:
                harmless[mistake.id] += _is_right(instance, mistake.when, expected, result)
        except Exception as error:
            yield Finding(question.id, seed, f"{type(error).__name__}: {error}")
    if question.params and trivial > TRIVIAL_SHARE * len(seeds):
        yield Finding(question.id, None, f"a trivial guess is right for {trivial} of {len(seeds)} seeds")
    for name, count in harmless.items():
        if count > (1 - MISTAKE_SHARE) * len(seeds):
            yield Finding(question.id, None, f"mistake {name} is right for {count} of {len(seeds)} seeds")
    if question.params and len(drawn) < min(4, len(seeds)):
        yield Finding(question.id, None, f"only {len(drawn)} different draws in {len(seeds)} seeds")
    yield from (finding for seed in seeds for finding in _witnesses(question, run, seed))


def _at_seed(instance: Instance, result: dict[str, Any] | None, expected: dict[str, Any]) -> Iterator[str]:
    question = instance.question
    instance.render(question.exhibit, **({"result": result} if question.run_first else {}))
    hints = [instance.render(hint.text) for hint in question.hints]
    instance.render(question.prompt)
    told = [question.explain, *(mistake.say for mistake in question.mistakes)]
    told += [
        *(follow_up.ask for follow_up in question.followups),
        *(choice.why for choice in question.choices),
    ]
    shown = [*hints, *(instance.render(text, result=result, expected=expected) for text in told)]
    yield from (problem for text in shown for problem in false_statements(text))
    if question.choices:
        options = [instance.render(choice.text) for choice in question.choices]
        if len(set(options)) < len(options):
            yield "two options read the same"
        if question.kind != "multi" and len(expected["choice"]) != 1:
            yield f"{len(expected['choice'])} choices are right: {expected['choice']}"
    for answer in question.answers:
        value = expected[answer.id]
        if value is None:
            yield f"answer {answer.id} has no expected value"
        elif not _fits(answer, value):
            yield f"answer {answer.id}: expected {value!r} is not of type {answer.type}"
        if answer.type in ("int", "float") and _given_away(value, hints):
            yield f"a hint contains the answer {value}"
    for statement in question.holds:
        if not evaluate(statement, {**instance.names(result), "expected": expected}):
            yield f"the statement {statement!r} does not hold"
    for answer_id, oracle in question.oracle.items():
        second = ask_oracle(oracle, instance)
        if not agree(expected.get(answer_id), second):
            yield f"{answer_id}: experiment says {expected.get(answer_id)!r}, oracle says {second!r}"
    yield from _refused(instance, result, expected)


def _coin_flips(instance: Instance, run: RunExperiment, expected: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding if other values of a `seed` that the question does not show make another option right.

    A threshold that lies within the noise flips in one of these draws; one that is three deviations away does not.
    """
    question, seeds = instance.question, instance.question.params.get("seed")
    if not question.choices or question.experiment is None or seeds is None or _shows_seed(question):
        return
    for attempt in range(HIDDEN_DRAWS):
        other = draw_params(f"{question.id}:{instance.seed}:hidden:{attempt}", {"seed": seeds}, [])
        again = Instance(question, instance.seed, {**instance.params, **other})
        right = again.expected(run(question.experiment.run, again.run_args()))["choice"]
        if right != expected["choice"]:
            yield Finding(
                question.id,
                instance.seed,
                f"{right} are right with the hidden seed {other['seed']}, not {expected['choice']}",
            )
            return


def _shows_seed(question: Question) -> bool:
    """Whether the learner sees the number, or the run's figures: then it is not noise."""
    return question.run_first or "seed" in question.prompt.replace("seeds", "") + question.exhibit


def _refused(instance: Instance, result: dict[str, Any] | None, expected: dict[str, Any]) -> Iterator[str]:
    """Yield right answers that get refused or lose points when a learner types them."""
    if instance.question.kind == "code" or not reply_keys(instance):
        return
    replies = typed_replies(instance, expected)
    try:
        graded = grade(instance, replies, result)
    except ParseError as error:
        yield f"{error.answer}: its right answer {replies.get(error.answer)!r} is refused: {error}"
        return
    for part in graded.parts:
        if not part.ok:
            yield f"{part.id}: its right answer {replies[part.id]!r} gets {part.points:g} of {part.max_points:g} points"


def ask_oracle(oracle: str, instance: Instance) -> Any:
    """Return the oracle's answer: an =expression over the params, or `module.function` in quizzes/oracles."""
    if is_expression(oracle):
        return evaluate(oracle, instance.params)
    module_name, function_name = oracle.rsplit(".", 1)
    function = getattr(importlib.import_module(f"quizzes.oracles.{module_name}"), function_name)
    args = {**instance.run_args(), **instance.params}
    wanted = inspect.signature(function).parameters
    missing = [n for n, p in wanted.items() if n not in args and p.default is inspect.Parameter.empty]
    if missing:
        raise TypeError(
            f"oracle {oracle} needs {', '.join(missing)}, which is neither a param nor an argument"
        )
    return function(**{name: value for name, value in args.items() if name in wanted})


def needs_model(experiment: str) -> bool:
    """Whether an experiment loads a model or computes tensors, and so takes seconds instead of milliseconds."""
    text = source_file(experiment).read_text(encoding="utf-8")
    return any(mark in text for mark in (".llm(", "AsyncLLM(", "torch"))


def is_live(experiment: str) -> bool:
    """Whether an experiment's file starts an engine with a model."""
    text = source_file(experiment).read_text(encoding="utf-8")
    return any(mark in text for mark in (".llm(", "AsyncLLM("))


def is_exact(question: Question) -> bool:
    return question.experiment is not None and get(question.experiment.run).determinism == "exact"


def _fits(answer: Answer, value: Any) -> bool:
    if answer.type in ("words", "ints"):
        item = str if answer.type == "words" else int
        return isinstance(value, list) and all(isinstance(element, item) for element in value)
    kind = {"int": int, "float": int | float, "bool": bool, "word": str}[answer.type]
    return isinstance(value, kind) and isinstance(value, bool) == (answer.type == "bool")


def agree(first: Any, second: Any) -> bool:
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, int | float) and isinstance(second, int | float):
        return isclose(first, second, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(agree(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


def _given_away(value: Any, hints: list[str]) -> bool:
    """Return whether a hint names the number. Small numbers appear by chance and are ignored."""
    if not isinstance(value, int) or abs(value) < 20:
        return False
    return any(re.search(rf"(?<![\d.,]){value}(?![\d.,]?\d)", hint) for hint in hints)


def _is_guessable(instance: Instance, expected: dict[str, Any], result: dict[str, Any] | None) -> bool:
    """Whether each answer is 0, 1 or a figure that the question shows, so that a guess is right.

    Not if another shown figure is a listed mistake: then the question is which of the two to choose.
    """
    question = instance.question
    numbers = [a for a in question.answers if a.type in ("int", "float")]
    if not numbers or len(numbers) < len(question.answers):
        return False
    shown: list[Any] = [0, 1]
    for value in instance.params.values():
        shown += value if isinstance(value, list) else [value]
    tempting = [resolve(mistake.when.equals, instance.names(result)) for mistake in question.mistakes]
    if any(agree(wrong, guess) for wrong in tempting for guess in shown):
        return False
    return all(any(agree(expected[a.id], guess) for guess in shown) for a in numbers)


def _is_right(instance: Instance, when: Any, expected: dict[str, Any], result: dict[str, Any] | None) -> bool:
    """Return whether a mistake's signature equals the right answer for this seed."""
    value, right = resolve(when.equals, instance.names(result)), expected.get(when.answer)
    return value in right if when.answer == "choice" and isinstance(right, list) else agree(value, right)


def _witnesses(question: Question, run: RunExperiment, seed: int) -> Iterator[Finding]:
    for follow_up in question.followups:
        if follow_up.experiment is None or follow_up.pass_ is None:
            continue
        if follow_up.witness is None:
            yield Finding(question.id, seed, f"challenge without a witness: {follow_up.ask[:50]!r}")
            continue
        try:
            instance = draw(question, seed)
            reply = resolve(follow_up.witness, instance.params)
            names = {**instance.params, **reply}
            result = run(follow_up.experiment.run, resolve(follow_up.experiment.args, names))
            if not evaluate(follow_up.pass_, {**names, "result": dotted(result)}):
                yield Finding(question.id, seed, f"the witness does not meet {follow_up.pass_!r}")
        except Exception as error:
            yield Finding(question.id, seed, f"witness: {type(error).__name__}: {error}")


def bank_files() -> list[Path]:
    """Return the files of all questions and claims."""
    return [*sorted(BANK.glob("*/*.yaml")), *sorted((BANK.parent / "claims" / "bank").glob("*.yaml"))]


def lint_format(path: Path) -> Iterator[str]:
    """Complain about lines over 120 columns and about a file that `prep bank lint --fix` would change."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(BANK.parent) if path.is_relative_to(BANK.parent) else path
    for number in long_lines(text):
        yield f"{name}:{number}: a line has more than {WIDTH} columns"
    try:
        if formatted(text) != text:
            yield f"{name}: not formatted; run prep bank lint --fix"
    except yaml.YAMLError as error:
        yield f"{name}: {error}"


def fix_format(path: Path) -> bool:
    """Format a file; whether that changed it. A file that is not YAML stays as it is."""
    text = path.read_text(encoding="utf-8")
    try:
        new = formatted(text)
    except yaml.YAMLError:
        return False
    if new != text:
        write_atomically(path, new)
    return new != text


def lint_files(paths: Iterable[Path], *, run: bool = True, seeds: int = SEEDS) -> list[str]:
    """Return complaints about files, for authors; the experiments run in this process."""
    from quizzes.experiments.running import run_here

    bank = load_bank()
    complaints: list[str] = []
    for path in paths:
        documents, bad = read_file(path, Question.model_validate)
        complaints += [str(problem) for problem in bad] or lint_format(path)
        for document in documents:
            question = Question.model_validate(document.data)
            findings = list(lint_form(question, bank))
            if run:
                statistical = question.experiment is not None and not is_exact(question)
                findings += lint_truth(question, run_here, range(2 if statistical else seeds))
            if path.resolve().is_relative_to(BANK) and question.id != f"{path.parent.name}.{path.stem}":
                complaints.append(f"{path}: its id is {question.id}")
            complaints += [str(finding) for finding in findings]
    return complaints


if __name__ == "__main__":
    wanted = [Path(name) for name in sys.argv[1:]] or [BANK]
    problems = []
    for one in [
        path for name in wanted for path in (sorted(name.rglob("*.yaml")) if name.is_dir() else [name])
    ]:
        problems += (mine := lint_files([one]))
        print(*(mine or [f"ok {one}"]), sep="\n", flush=True)
    sys.exit(bool(problems))
