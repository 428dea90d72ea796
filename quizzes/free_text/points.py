"""Key points as one instance shows them: with its figures."""

from __future__ import annotations

from typing import Any

from quizzes.instance import Instance
from quizzes.question import KeyPoint


def key_points(instance: Instance, **more: Any) -> list[KeyPoint]:
    """`more`: result and expected, where the texts name them. Raises QuestionError."""

    def shown(text: str) -> str:
        return instance.render(text, **more)

    return [
        point.model_copy(
            update={
                "say": shown(point.say),
                "good": [shown(text) for text in point.good],
                "bad": [shown(text) for text in point.bad],
            }
        )
        for point in instance.question.keypoints
    ]
