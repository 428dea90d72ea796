"""Right answers as a learner would type them, to check that the grader accepts them."""

from __future__ import annotations

from typing import Any

from quizzes.grading.grade import reply_keys
from quizzes.instance import Instance


def typed_replies(instance: Instance, expected: dict[str, Any]) -> dict[str, str]:
    """Return right `replies` for `grade`: values with units, options by their numbers on the screen."""
    shown = {"choice": [choice.id for choice in instance.choices()], "order": instance.items()}
    units = {answer.id: answer.unit or "" for answer in instance.question.answers}
    replies = {}
    for key in reply_keys(instance):
        value = expected[key] if key in expected else expected[instance.question.answers[0].id]
        if key in shown:
            value = [shown[key].index(each) + 1 for each in value]
        replies[key] = typed(value, units.get(key, ""))
    return replies


def typed(value: Any, unit: str = "") -> str:
    """Format one value: True -> yes, 1536 -> "1,536 B", [4, 1] -> "4, 1", [] -> none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,} {unit}".strip()
    if isinstance(value, float):
        return f"{value!r} {unit}".strip()
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value) or "none"
    return str(value)
