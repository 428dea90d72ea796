"""Whether a sentence says the opposite of a key point in nearly the point's words.

Each content word counts as affirmed or negated: `not`, `never`, `without` and `rather than` negate the words behind
them in their clause. A direction word is its opposite negated: `fewer` is `more` negated. A sentence near to a point is
its opposite if several words have the other sign than in every right phrasing, if the same words stand in another order
("prefill is bandwidth-bound and decode compute-bound"), or if it is close to a wrong phrasing and nearer to it. In a
sentence very near to a point, one word of a clause is enough. "Less of one, so less of the other" is taken for the
opposite of "more of one, so more of the other". A wrong statement in words far from the point's is not recognised.
"""

import re

from quizzes.free_text.sentences import FUNCTION_WORDS, nearness, sentences, stem, stems, words
from quizzes.question import KeyPoint

NEAR = 0.5
"""Nearness to a right phrasing from which signs are compared."""
CLOSE = 0.7
"""Nearness from which one word with the other sign is enough."""
SAME = 0.9
"""Nearness from which the order of the words is compared."""
CONFLICTS = 2
"""Words with the other sign that make a sentence an opposite; a direction word counts twice."""
SAME_CLAUSE = 0.8
"""Share of the content words of two clauses that both have, from which their signs are compared."""
CLAUSE_WORDS = 2
"""Content words that such a clause has at least."""
_NEGATORS = frozenset("not no nor never neither nothing none cannot without".split())
PAIRS = """more/fewer more/less higher/lower faster/slower longer/shorter larger/smaller large/small raise/lower
    increase/reduce lengthen/shorten maximise/minimise coarsen/refine gain/lose first/last most/least
    before/past hardware/software""".split()
_OPPOSITE = {stem(pair.split("/")[1]): stem(pair.split("/")[0]) for pair in PAIRS}
_DIRECTIONS = frozenset((*_OPPOSITE.values(), "only"))
_BREAK = re.compile(
    r"[,;:.!?()](?:\s|$)|\b(?:and|as|but|so|since|because|which|while|whereas|if|when|that|unless)\b"
)


def is_opposite(sentence: str, point: KeyPoint) -> bool:
    """Return whether a sentence near to a right phrasing of the point turns a statement of it around."""
    whole = [point.say, *point.good]
    right = [*whole, *(part for phrasing in whole for part in sentences(phrasing))]
    near = nearness(sentence, right)
    wrong = nearness(sentence, point.bad)
    if wrong >= CLOSE and wrong > near:
        return True
    if near < NEAR:
        return False
    conflicts = _conflicts(sentence, right)
    if near >= CLOSE and _has_turned_clause(sentence, right):
        return True
    cost = sum(2 if word in _DIRECTIONS else 1 for word in conflicts)
    needed = 1 if near >= CLOSE else CONFLICTS
    return cost >= needed or (near >= SAME and _is_reordered(sentence, right))


def _conflicts(sentence: str, right: list[str]) -> set[str]:
    """Return the words whose sign differs from the one in every right phrasing that has them."""
    known: dict[str, set[bool]] = {}
    for phrasing in right:
        for word, signs in _signs(phrasing).items():
            known.setdefault(word, set()).update(signs)
    conflicts = {
        word for word, signs in _signs(sentence).items() if word in known and not signs & known[word]
    }
    for clause in _BREAK.split(sentence):
        of_clause = _signs(clause)
        verb = next((word for word, signs in of_clause.items() if signs == {False}), "")
        if known.get(verb) == {False}:  # "A is not shared with B" says what "B does not share A" says
            conflicts -= of_clause.keys()
    return conflicts


def _has_turned_clause(sentence: str, right: list[str]) -> bool:
    """Return whether a clause has the words of one or more right clauses, and in each of them a word has another sign.

    A point that says "more of this and less of that" has both signs of `more`, so only its clauses show what is turned.
    """
    known = [_signs(clause) for phrasing in right for clause in _BREAK.split(phrasing)]
    for clause in _BREAK.split(sentence):
        said = _signs(clause)
        if len(said) < CLAUSE_WORDS:
            continue
        alike = [other for other in known if _overlap(said, other) >= SAME_CLAUSE]
        if alike and all(_differs(said, other) for other in alike):
            return True
    return False


def _overlap(one: dict[str, set[bool]], other: dict[str, set[bool]]) -> float:
    return len(one.keys() & other.keys()) / len(one.keys() | other.keys())


def _differs(one: dict[str, set[bool]], other: dict[str, set[bool]]) -> bool:
    return any(not one[word] & other[word] for word in one.keys() & other.keys())


def _signs(text: str) -> dict[str, set[bool]]:
    """Return for each content word in order whether it is affirmed, True, or negated, False."""
    plain = text.lower().replace("not only", "only").replace("n't", " not")
    plain = plain.replace("rather than", ", no").replace("instead of", ", no")
    signs: dict[str, set[bool]] = {}
    if "only" in words(plain):
        signs["only"] = {"not only" not in text.lower()}
    for clause in _BREAK.split(plain):
        is_affirmed = True
        for word in words(clause):
            if word in _NEGATORS:
                is_affirmed = word != "nor" and not is_affirmed
            name = stem(word)
            if name in _OPPOSITE:
                signs.setdefault(_OPPOSITE[name], set()).add(not is_affirmed)
            elif (
                word != "only"
                and word not in _NEGATORS
                and (word not in FUNCTION_WORDS or name in _DIRECTIONS)
            ):
                signs.setdefault(name, set()).add(is_affirmed)
    return signs


def _is_reordered(sentence: str, right: list[str]) -> bool:
    """Return whether the phrasing with most of the sentence's words has them in another order."""
    phrasing = max(right, key=lambda text: nearness(sentence, [text]))
    shared = stems(sentence) & stems(phrasing)
    return _order(sentence, shared) != _order(phrasing, shared)


def _order(text: str, shared: frozenset[str]) -> list[str]:
    return list(dict.fromkeys(name for name in map(stem, words(text)) if name in shared))
