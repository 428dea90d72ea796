"""Grading of prose: marked by its author, checked with machine-graded probes.

    key_points(instance)              the points with this instance's numbers
    lints(answer, kind, points)       questions about the text, without points
    closest(point, answer)            the sentence of the answer nearest to a key point: nearest, not correct
    score(points, self_marks, probes) 0.6 machine-graded probes + 0.4 self marks, by weight

Similarity cannot decide: a sentence with two words swapped is nearest to the point that it contradicts. A judge
(`judge.py`) is optional: any OpenAI-compatible endpoint; its marks count only after it passes our canaries
(`canaries.py`).
"""

from quizzes.free_text.lints import Lint, lints
from quizzes.free_text.points import key_points
from quizzes.free_text.scoring import FreeGraded, PointScore, over_marking, score
from quizzes.free_text.sentences import Closest, closest, sentences

__all__ = [
    "Closest",
    "FreeGraded",
    "Lint",
    "PointScore",
    "closest",
    "key_points",
    "lints",
    "over_marking",
    "score",
    "sentences",
]
