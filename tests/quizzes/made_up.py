"""Questions that stand in no bank."""

from __future__ import annotations

from typing import Any

from quizzes.question import Question


def question(**fields: Any) -> Question:
    usual = {
        "schema": 1,
        "id": "memory.made_up",
        "title": "made up",
        "stage": "technical",
        "roles": ["sre"],
        "difficulty": 2,
        "minutes": 2,
        "sources": [{"ref": "a test"}],
        "prompt": "?",
        "explain": "!",
    }
    return Question.model_validate({**usual, **fields})
