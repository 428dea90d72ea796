"""Key points with the numbers of one instance."""

from __future__ import annotations

from typing import Any

from quizzes.instance import Instance
from quizzes.question import KeyPoint


def key_points(instance: Instance, **more: Any) -> list[KeyPoint]:
    """Render the key points. more: result and expected, if the texts use them. Raises QuestionError."""

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
