"""The court runs a claim's test and computes the verdict from the results.

    judge(claim, run)    run(experiment, args) -> result

    case      holds is true -> right; fails is true (or, without it, holds is false) -> wrong;
              neither, or an inconclusive measurement -> undecided
    verdict   of the cases within the claim's conditions, by the form of the claim:
              general      right and wrong cases: depends. Else, with undecided cases: inconclusive.
                           Else confirmed or refuted
              existential  one right case: confirmed           universal    one wrong case: refuted
              conjunctive  a setting is right if all its parts are; then as for a general claim
              right in the cases of an old release (`until`) and refuted today: outdated.
              Without the hardware: skipped

No verdict of a test is stored in the bank; only facts have one, with their source.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from quizzes.claims.claim import Case, Claim, Form, Test, Verdict
from quizzes.experiments.registry import BadArguments, Inconclusive, NeedsHardware, UnknownExperiment, get
from quizzes.expressions import ExpressionError, dotted, evaluate, is_expression
from quizzes.instance import render_text

Run = Callable[[str, dict[str, Any]], dict[str, Any]]
NO_GPU = "needs a GPU"
TOO_FEW = "the difference is within what chance explains; a larger sample would decide"


class BrokenTest(ValueError):
    """Raised for a test that cannot decide its claim, an error in the claim's file; the message names the id."""


@dataclass(frozen=True)
class CaseOutcome:
    """Outcome of one case."""

    when: str
    args: dict[str, Any]
    """All arguments, with defaults."""
    holds: bool | None
    """None if undecided."""
    outside: str = ""
    """Reason why it is not counted."""
    until: str = ""
    """The last release for which it speaks; "" for today."""
    exhibit: dict[str, Any] = field(default_factory=dict)
    """The values of the result that the rule uses."""
    reason: str = ""
    """Reason why it is undecided."""
    result: dict[str, Any] | None = field(default=None, repr=False)
    measured: bool = False
    """Whether the values come from a clock and differ between runs."""


@dataclass(frozen=True)
class FigureOutcome:
    """The claim's number and the engine's."""

    value: Any
    unit: str
    says: float | str | None


@dataclass(frozen=True)
class Ruling:
    """The ruling on a claim."""

    id: str
    kind: str
    decided_by: Literal["test", "fact", "discussion"]
    verdict: Verdict | None
    """None for discussions."""
    cases: tuple[CaseOutcome, ...] = ()
    figure: FigureOutcome | None = None
    wording: str = ""
    """The sentence to say, with the numbers of this run."""
    reason: str = ""
    """Reason why it was skipped or is inconclusive."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values without the full results."""
        plain = asdict(self)
        for case in plain["cases"]:
            del case["result"]
        return plain


def judge(claim: Claim, run: Run) -> Ruling:
    """Judge a claim. Raises BrokenTest if an expression, an argument or the wording does not work.

    run: returns an experiment's result by name and arguments; may raise Inconclusive and NeedsHardware.
    """
    if claim.test is None and claim.fact is not None:
        says = claim.wording or claim.fact.says
        return Ruling(claim.id, claim.kind, "fact", claim.fact.verdict, wording=says)
    if claim.test is None:
        better = claim.discussion.better if claim.discussion else ""
        return Ruling(claim.id, claim.kind, "discussion", None, wording=claim.wording or better)
    try:
        cases = tuple(_hear(claim, claim.test, case, case.args, run) for case in claim.test.cases)
    except NeedsHardware as error:
        why = str(error)
        if claim.kind == "measure-gpu" or "GPU" in why or "CUDA" in why:
            why = NO_GPU
        return Ruling(claim.id, claim.kind, "test", "skipped", reason=why)
    verdict = decide_test(claim.test, cases)
    reason = (
        "; ".join(dict.fromkeys(case.reason for case in cases if case.reason and not case.outside))
        if verdict == "inconclusive"
        else ""
    )
    results = [dotted(case.result or {}) for case in cases]
    names = {"result": cases[0].result or {}, "results": results, "args": cases[0].args}
    figure = claim.test.figure if cases[0].result is not None else None
    return Ruling(
        claim.id,
        claim.kind,
        "test",
        verdict,
        cases,
        FigureOutcome(_evaluate(claim, figure.value, names), figure.unit, figure.says) if figure else None,
        _wording(claim, cases, {**names, "verdict": verdict}),
        reason,
    )


def verdict_of(holds: Iterable[bool | None], form: Form = "general") -> Verdict:
    """Return the verdict of cases: True is right, False wrong, None undecided.

    A conjunctive claim's cases are its settings, each right if all its parts are.
    """
    seen = set(holds)
    if {True, False} <= seen and form in ("general", "conjunctive"):
        return "depends"
    if (form == "existential" and True in seen) or seen == {True}:
        return "confirmed"
    if (form == "universal" and False in seen) or seen == {False}:
        return "refuted"
    return "inconclusive"


def decide_test(test: Test, outcomes: tuple[CaseOutcome, ...]) -> Verdict:
    """Return the verdict of the cases within the claim's conditions, those of an old release apart."""

    def verdict(*, old: bool) -> Verdict:
        settings: dict[Any, list[bool | None]] = {}
        for number, (case, outcome) in enumerate(zip(test.cases, outcomes, strict=True)):
            if not case.outside and bool(case.until) == old:
                key = case.setting if test.form == "conjunctive" else number
                settings.setdefault(key, []).append(outcome.holds)
        parts = [
            False if False in setting else None if None in setting else True for setting in settings.values()
        ]
        return verdict_of(parts, test.form)

    today = verdict(old=False)
    return "outdated" if today == "refuted" and verdict(old=True) == "confirmed" else today


def flip(claim: Claim, args: dict[str, Any], run: Run) -> tuple[CaseOutcome, CaseOutcome, bool]:
    """Return the first case, the same with other arguments, and whether its outcome reversed. Raises BrokenTest."""
    if claim.test is None:
        raise BrokenTest(f"{claim.id} has no test to reverse")
    first = claim.test.cases[0]
    before = _hear(claim, claim.test, first, first.args, run)
    after = _hear(claim, claim.test, first, {**first.args, **args}, run)
    return before, after, before.holds is not None and after.holds is (not before.holds)


def check_flip(claim: Claim, run: Run) -> None:
    """Raise BrokenTest if the witness does not reverse the first case. Skipped without the hardware."""
    if claim.flip is None or claim.test is None:
        return
    try:
        before, _, flipped = flip(claim, claim.flip.args, run)
    except NeedsHardware:
        return
    if not flipped and before.holds is not None:
        raise BrokenTest(f"{claim.id}: its flip's witness {claim.flip.args} does not reverse the first case")


def arguments(claim: Claim, test: Test, more: dict[str, Any]) -> dict[str, Any]:
    """Return every argument of the experiment, checked, as plain values."""
    try:
        given = {
            name: evaluate(value, {}) if is_expression(value) else value
            for name, value in {**test.args, **more}.items()
        }
        return dict(json.loads(json.dumps(get(test.run).check(given))))
    except (UnknownExperiment, BadArguments, ExpressionError, TypeError) as error:
        raise BrokenTest(f"{claim.id}: {error}") from error


def _hear(claim: Claim, test: Test, case: Case, more: dict[str, Any], run: Run) -> CaseOutcome:
    if case.run:
        test = test.model_copy(update={"run": case.run, "args": {}})
    args = arguments(claim, test, more)
    until = case.until.version or "" if case.until else ""
    try:
        result = run(test.run, args)
    except Inconclusive as noise:
        return CaseOutcome(
            case.when,
            args,
            None,
            case.outside,
            until,
            reason=str(noise) or "the measurement is too noisy",
            measured=True,
        )
    names = {"result": result, "args": args}
    holds = _decide(claim, case.holds, names)
    fails = (not holds) if case.fails is None else _decide(claim, case.fails, names)
    if holds and fails:
        raise BrokenTest(f"{claim.id}: in case {case.when!r} both `holds` and `fails` are true")
    outcome = True if holds else False if fails else None
    named = re.findall(r"\bresult\.(\w+)|\bresult\[['\"](\w+)['\"]\]", f"{case.holds} {case.fails or ''}")
    exhibit = {name: result[name] for pair in named for name in pair if name in result}
    measured = get(test.run).determinism == "statistical"
    reason = "" if outcome is not None else _too_noisy(result) if measured else TOO_FEW
    return CaseOutcome(case.when, args, outcome, case.outside, until, exhibit, reason, result, measured)


def _too_noisy(result: dict[str, Any]) -> str:
    """Say that a measurement cannot decide, how much it varied, and what to do."""
    middle = next((result[name] for name in ("ratio", "median", "speedup") if result.get(name)), None)
    lo, hi, rounds = result.get("lo"), result.get("hi"), result.get("repeats")
    varied = "its rounds varied too much"
    if lo is not None and hi is not None:
        width = (hi - lo) / 2 / abs(middle or (hi + lo) / 2 or 1)
        varied = f"{rounds or 'the'} rounds varied by {100 * width:.0f} %"
    return f"the machine was busy: {varied}, and the interval holds both answers; close other programs and run again"


def _decide(claim: Claim, expression: str, names: dict[str, Any]) -> bool:
    value = _evaluate(claim, expression, names)
    if not isinstance(value, bool):
        raise BrokenTest(f"{claim.id}: {expression!r} gives {value!r}, not true or false")
    return value


def _evaluate(claim: Claim, expression: str, names: dict[str, Any]) -> Any:
    try:
        return evaluate(expression, names)
    except ExpressionError as error:
        raise BrokenTest(f"{claim.id}: {error}") from error


def _wording(claim: Claim, cases: tuple[CaseOutcome, ...], names: dict[str, Any]) -> str:
    """Render the wording; "" if a case without a result leaves out its numbers, or if nothing backs it."""
    if names["verdict"] == "inconclusive" and "verdict" not in claim.wording:
        return ""
    try:
        return " ".join(render_text(claim.wording, names).split())
    except Exception as error:
        if any(case.result is None for case in cases):
            return ""
        raise BrokenTest(f"{claim.id}: wording: {error}") from error
