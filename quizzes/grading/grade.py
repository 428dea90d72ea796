"""Grade a whole reply: compare every part, give points, recognise known mistakes.

    replies = {"static": "124", "continuous": "62"}       answers by id
    replies = {"x": "100 ms", "x.interval": "80..120"}    with the interval that some answers ask for
    replies = {"choice": "2"}  {"choice": "a, c"}         options: the number on the screen (from 1), or the id
    replies = {"order": "b, a, c"}  {"order": "2 1 3"}    the same for items to put in order

An unreadable reply raises ParseError before any comparison.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quizzes.expressions import ExpressionError, resolve
from quizzes.grading.check import is_tolerant, same_number, share_of_points, slip
from quizzes.grading.options import adjacent_share, pick, picked_share
from quizzes.grading.parse import Parsed, ParseError, normal_word, parse, parse_interval
from quizzes.instance import Instance
from quizzes.question import Answer

Grader = Literal["exact", "band", "experiment", "tests", "probe", "self", "judge"]
MISTAKE_REL = 0.005
"""Relative tolerance for recognising a mistake's value in a float."""


@dataclass(frozen=True)
class Part:
    """One part of a question and its reply."""

    id: str
    given: Any
    expected: Any
    ok: bool
    points: float
    max_points: float
    unit: str = ""
    remark: str = ""
    """A remark on units, and on the possible cause of a wrong number."""
    mistake: str = ""
    """Id of the recognised mistake; "" if right or unknown."""
    say: str = ""
    """Text of that mistake with this instance's numbers."""
    interval: tuple[float, float] | None = None
    level: float | None = None
    """Probability that the interval should contain the truth."""
    hit: bool | None = None
    """Whether the interval contains the truth; None without an interval."""


@dataclass(frozen=True)
class Graded:
    """The graded reply to one instance of a question."""

    parts: tuple[Part, ...]
    grader: Grader

    @property
    def points(self) -> float:
        return sum(part.points for part in self.parts)

    @property
    def max_points(self) -> float:
        return sum(part.max_points for part in self.parts)

    @property
    def all_right(self) -> bool:
        return all(part.ok for part in self.parts)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Return the ids of recognised mistakes."""
        return tuple(part.mistake for part in self.parts if part.mistake)


def reply_keys(instance: Instance) -> list[str]:
    """Return the keys that `replies` needs for this question, in the order to ask for them."""
    question = instance.question
    if question.kind == "order":
        return ["order"]
    return [answer.id for answer in question.answers] + (["choice"] if question.choices else [])


def asked_keys(instance: Instance) -> list[str]:
    """Return the keys to ask for: those of `reply_keys`, intervals after their answers (they may be left out)."""
    intervals = {answer.id for answer in instance.question.answers if answer.interval is not None}
    return [
        key
        for name in reply_keys(instance)
        for key in ([name, f"{name}.interval"] if name in intervals else [name])
    ]


def check_reply(instance: Instance, key: str, text: str, given: Mapping[str, str] | None = None) -> Any:
    """Parse the reply for one key without grading it. given: the other replies, of which an interval must contain its
    number. Raises ParseError."""
    if key == "choice":
        kind = instance.question.kind
        chosen = pick(text, [choice.id for choice in instance.choices()], key="choice", none=kind == "multi")
        if kind == "choice" and len(chosen) != 1:
            raise ParseError(f"you named {len(chosen)} options", "type the number of one", "choice")
        return chosen
    if key == "order":
        return pick(text, instance.items(), key="order", every=True)
    if key.endswith(".interval"):
        answer = _answer(instance, key.removesuffix(".interval"))
        ends = parse_interval(text, answer)
        if given and (number := given.get(answer.id)):
            _check_inside(number, ends, answer)
        return ends
    return parse(text, _answer(instance, key)).value


def _check_inside(number: str, ends: tuple[float, float], answer: Answer) -> None:
    """Raise ParseError if a number lies outside of its own interval."""
    value = float(parse(number, answer).value)
    if not (ends[0] <= value <= ends[1] or same_number(value, ends[0]) or same_number(value, ends[1])):
        read = f"{ends[0]:g} to {ends[1]:g}{f' {answer.unit}' if answer.unit else ''}"
        what = f"your number {number.strip()} lies outside of your interval, which was read as {read}"
        raise ParseError(what, "type an interval around it, with its unit", answer.id)


def grade(instance: Instance, replies: dict[str, str], result: dict[str, Any] | None = None) -> Graded:
    """Grade a reply to this instance. result: result of the question's experiment, if it has one.

    Raises ParseError if a reply is missing or unreadable; nothing was graded.
    """
    for key in reply_keys(instance):
        check_reply(instance, key, replies.get(key, ""))
    expected = instance.expected(result)
    run = {"expected": expected} if result is None else {"expected": expected, "result": result}
    parts = []
    for key in reply_keys(instance):
        if key in ("choice", "order"):
            parts.append(
                _grade_options(instance, key, replies[key], right_options(instance, key, expected), run)
            )
        else:
            parts.append(_grade_answer(instance, key, replies, expected[key], run))
    asked = [] if instance.question.kind == "order" else instance.question.answers
    tolerant: Grader = "band" if any(is_tolerant(answer) for answer in asked) else "exact"
    return Graded(tuple(parts), "experiment" if instance.question.experiment is not None else tolerant)


def right_options(instance: Instance, key: str, expected: dict[str, Any]) -> list[str]:
    """Return the ids of the right options. An order may be the expected value of the question's answer."""
    return [str(option) for option in expected[key if key in expected else instance.question.answers[0].id]]


def _answer(instance: Instance, name: str) -> Answer:
    for answer in instance.question.answers:
        if answer.id == name:
            return answer
    raise KeyError(f"{instance.id} has no answer {name!r}; it has {', '.join(reply_keys(instance))}")


def _grade_answer(
    instance: Instance, key: str, replies: dict[str, str], expected: Any, run: dict[str, Any]
) -> Part:
    answer = _answer(instance, key)
    parsed = parse(replies[key], answer)
    share = share_of_points(parsed.value, expected, answer)
    ok = share >= 1
    mistake, say = ("", "") if ok else _mistake(instance, key, parsed.value, run)
    typed_interval = replies.get(f"{key}.interval", "") if answer.interval else ""
    interval = parse_interval(typed_interval, answer) if typed_interval else None
    return Part(
        id=key,
        given=parsed.value,
        expected=expected,
        ok=ok,
        points=share * answer.points,
        max_points=answer.points,
        unit=answer.unit or "",
        remark=_remark(parsed, expected, answer, ok=ok, known=bool(mistake)),
        mistake=mistake,
        say=say,
        interval=interval,
        level=answer.interval if interval else None,
        hit=None if interval is None else interval[0] <= float(expected) <= interval[1],
    )


def _remark(parsed: Parsed, expected: Any, answer: Answer, *, ok: bool, known: bool) -> str:
    """Return a remark on the typed unit and, unless a mistake was recognised, on the cause of a wrong number."""
    remarks = [parsed.remark]
    if answer.type in ("int", "float") and not ok and not known:
        face_is_right = (
            parsed.unit and parsed.face is not None and share_of_points(parsed.face, expected, answer) >= 1
        )
        remarks.append(
            f"the number would be right in {answer.unit}"
            if face_is_right
            else slip(parsed.value, float(expected), whole=answer.type == "int", unit=answer.unit or "")
        )
    if answer.type in ("words", "ints") and not ok and sorted(map(str, parsed.value)) == _as_sorted(expected):
        remarks.append("the right elements in another order")
    return "; ".join(remark for remark in remarks if remark)


def _grade_options(instance: Instance, key: str, text: str, right: list[str], run: dict[str, Any]) -> Part:
    """Grade one of several options as all or nothing, all that hold by option, and an order by its neighbours."""
    given = check_reply(instance, key, text)
    if key == "order":
        share = adjacent_share(given, right)
    elif instance.question.kind != "choice" and len(right) != 1:
        share = picked_share(given, right)
    else:
        share = float(set(given) == set(right) if len(right) == 1 else given[0] in right)
    ok = share >= 1
    mistake, say = ("", "") if ok else _mistake(instance, key, given, run)
    return Part(key, given, right, ok, points=share, max_points=1.0, mistake=mistake, say=say)


def _mistake(instance: Instance, key: str, given: Any, run: dict[str, Any]) -> tuple[str, str]:
    """Return (id, text) of the first mistake whose signature matches a wrong reply; ("", "") if none does."""
    for mistake in instance.question.mistakes:
        try:
            equals = resolve(mistake.when.equals, {**instance.params, **run})
        except ExpressionError:
            continue  # undefined for these params, such as a division by zero
        if _is_signature(instance, key, mistake.when.answer, given, equals):
            return mistake.id, instance.render(mistake.say, **run)
    return "", ""


def _is_signature(instance: Instance, key: str, where: str, given: Any, equals: Any) -> bool:
    if key == "choice":
        if where == "choice":
            wanted = equals if isinstance(equals, list) else [equals]
            return set(given) == set(wanted) if len(wanted) > 1 else wanted[0] in given
        return any(choice.id == where for choice in instance.question.choices) and (where in given) is bool(
            equals
        )
    several = isinstance(equals, list | tuple)
    if key == "order":
        return several and list(equals) == given
    if where != key:
        return False
    if isinstance(given, list):
        return several and [str(option) for option in given] == [_plain(equal) for equal in equals]
    if isinstance(given, bool | str):
        return _plain(given) == _plain(equals)
    if isinstance(equals, bool) or not isinstance(equals, int | float):
        return False
    if isinstance(given, int):
        return same_number(given, equals)
    return bool(abs(given - equals) <= MISTAKE_REL * abs(equals))


def _as_sorted(expected: Any) -> list[str]:
    return sorted(map(_plain, expected if isinstance(expected, list | tuple | set) else [expected]))


def _plain(value: Any) -> str:
    return normal_word(value) if isinstance(value, str) else str(value)


def typed_replies(instance: Instance, expected: dict[str, Any]) -> dict[str, str]:
    """Return right `replies` as a learner would type them: values with units, options by their numbers."""
    shown = {"choice": [choice.id for choice in instance.choices()], "order": instance.items()}
    answers = {answer.id: answer for answer in instance.question.answers}
    return {
        key: typed([shown[key].index(option) + 1 for option in right_options(instance, key, expected)])
        if key in shown
        else typed(
            float(expected[key]) if answers[key].type == "float" else expected[key], answers[key].unit or ""
        )
        for key in reply_keys(instance)
    }


def typed(value: Any, unit: str = "") -> str:
    """Format one value: True -> yes, 1536 -> "1,536 B", [4, 1] -> "4, 1", [] -> none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,} {unit}".strip()
    if isinstance(value, float):
        return f"{value!r} {unit}".strip()
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    return str(value)
