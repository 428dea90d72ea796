"""Prose: marked by whoever wrote it, checked through what follows from it.

    key_points(instance)              the points with this instance's figures
    lints(answer, kind, points)       questions about the text: it asks, it never judges
    closest(point, answer)            the sentence of the answer nearest to a key point: nearest, not correct
    score(points, self_marks, probes) 0.6 machine-graded probes + 0.4 self marks, by weight

Similarity is no verdict: a sentence with two words swapped is nearest to the point that it contradicts. A judge
(`judge.py`) is an option: any OpenAI-compatible endpoint whose marks count only after it passed our canaries
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
