"""Grading of prose: marked by its author, checked with machine-graded probes.

    scoring.key_points(instance)              the points with this instance's numbers
    lints.lints(answer, kind, points)         questions about the text, without points
    sentences.closest(point, answer)          the sentence of the answer nearest to a key point: nearest, not correct
    scoring.score(points, self_marks, probes) 0.6 machine-graded probes + 0.4 self marks, by weight

    polarity.is_opposite(sentence, point)     whether a sentence near to a point negates or swaps its words

Similarity alone cannot decide: a sentence with two words swapped is nearest to the point that it contradicts. A judge
(`judge.py`) is optional: any OpenAI-compatible endpoint; its marks count only after it passes our canaries
(`canaries.py`).
"""
