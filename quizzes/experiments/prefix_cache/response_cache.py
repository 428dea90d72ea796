import re
from collections.abc import Callable
from random import Random

from quizzes.experiments import Result, arg, experiment

TITLES = [
    f"{a} {b}"
    for a in ("Copper", "Quiet", "Paper", "Winter", "Salt")
    for b in ("Harbour", "Fox", "Garden", "Bell")
]
ASPECTS = ("price", "stock", "author", "volumes")
PHRASES = (
    "What is the {aspect} of {title}?",
    "what is the {aspect} of {title}",
    "Please tell me the {aspect} of {title}.",
    "{title}: {aspect}?",
)


_WORD = re.compile(r"[a-z0-9]+")


def normalise(question: str) -> str:
    """Return the words of a question without case and punctuation."""
    return " ".join(_WORD.findall(question.lower()))


def likeness(a: str, b: str) -> float:
    """Return the Jaccard similarity: words in common over words in either."""
    first, second = set(_WORD.findall(a.lower())), set(_WORD.findall(b.lower()))
    return len(first & second) / len(first | second) if first | second else 1.0


class ResponseCache:
    """Answers by question. threshold: similarity that a match needs; None: an equal key."""

    def __init__(self, key: Callable[[str], str] = str, threshold: float | None = None) -> None:
        self.key = key
        self.threshold = threshold
        self._answers: dict[str, str] = {}

    def get(self, question: str) -> str | None:
        if self.threshold is None:
            return self._answers.get(self.key(question))
        best = max(self._answers, key=lambda known: likeness(known, question), default=None)
        if best is None or likeness(best, question) < self.threshold:
            return None
        return self._answers[best]

    def put(self, question: str, answer: str) -> None:
        self._answers[self.key(question)] = answer


@experiment("E48")
def response_cache(
    questions: int = arg(300, 10, 600),
    skew: float = arg(1.0, 0, 3),
    personal: float = arg(0.0, 0, 1),
    threshold: float = arg(0.7, 0, 1),
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Serve questions of a bookshop from three response caches: exact text, normalised text, similar text.

    80 meanings (20 titles, 4 aspects) in 4 wordings; the k-th most frequent has weight 1 / k^skew. personal: share of
    questions with an order number, for which another customer's answer is wrong. Nothing expires.

    Returns: Shares of all questions.
        distinct [share]: Different meanings over all questions, which the engine has to answer at least.
        exact [share]: Answered from the cache when the text must be the same.
        normalised [share]: The same after case and punctuation are dropped.
        similar [share]: Answered when the share of common words reaches the threshold.
        false_exact, false_normalised, false_similar [share]: Answers that belong to another question, over all.
    """
    rng = Random(seed)
    meanings = [(title, aspect) for title in TITLES for aspect in ASPECTS]
    rng.shuffle(meanings)
    weights = [1 / (rank + 1) ** skew for rank in range(len(meanings))]
    asked: list[tuple[str, str]] = []
    """(Text, meaning) of each question."""
    for _ in range(questions):
        title, aspect = rng.choices(meanings, weights)[0]
        text, meaning = rng.choice(PHRASES).format(title=title, aspect=aspect), f"{title}/{aspect}"
        if rng.random() < personal:
            order = f"order {rng.randrange(10**6)}"
            text, meaning = f"{text} It is for {order}.", f"{meaning}/{order}"
        asked.append((text, meaning))
    caches = {
        "exact": ResponseCache(),
        "normalised": ResponseCache(normalise),
        "similar": ResponseCache(threshold=threshold),
    }
    found = {name: _serve(cache, asked) for name, cache in caches.items()}
    return Result(
        distinct=len({meaning for _, meaning in asked}) / questions,
        **{name: hits / questions for name, (hits, _) in found.items()},
        **{f"false_{name}": wrong / questions for name, (_, wrong) in found.items()},
    )


def _serve(cache: ResponseCache, asked: list[tuple[str, str]]) -> tuple[int, int]:
    """(answers from the cache, wrong ones among them). A right answer has the question's meaning."""
    hits = wrong = 0
    for text, meaning in asked:
        answer = cache.get(text)
        if answer is None:
            cache.put(text, meaning)
        else:
            hits += 1
            wrong += answer != meaning
    return hits, wrong
