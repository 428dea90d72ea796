import math
import re
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any

from quizzes.experiments import Result, arg, experiment
from quizzes.experiments.charts import POINTS, vega

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
_ORDER = re.compile(r"\border \d")


def normalise(question: str) -> str:
    """Return the words of a question without case and punctuation."""
    return " ".join(_WORD.findall(question.lower()))


def likeness(a: str, b: str) -> float:
    """Return the Jaccard similarity: words in common over words in either."""
    first, second = set(_WORD.findall(a.lower())), set(_WORD.findall(b.lower()))
    return len(first & second) / len(first | second) if first | second else 1.0


class ResponseCache:
    """Answers by question. threshold: similarity that a match needs; None: an equal key. ttl: lifetime of an answer."""

    def __init__(
        self, key: Callable[[str], str] = str, threshold: float | None = None, ttl: float = math.inf
    ) -> None:
        self.key = key
        self.threshold = threshold
        self.ttl = ttl
        self._answers: dict[str, tuple[str, float]] = {}
        """Answer and time of its storage, by key."""

    def get(self, question: str, now: float = 0.0) -> str | None:
        key: str | None = self.key(question)
        if self.threshold is not None:
            key = max(self._answers, key=lambda known: likeness(known, question), default=None)
            if key is None or likeness(key, question) < self.threshold:
                return None
        answer, stored = self._answers.get(key or "", (None, 0.0))
        return answer if now - stored < self.ttl else None

    def put(self, question: str, answer: str, now: float = 0.0) -> None:
        self._answers[self.key(question)] = answer, now


@experiment("E48")
def response_cache(
    questions: int = arg(300, 10, 600),
    skew: float = arg(1.0, 0, 3),
    personal: float = arg(0.0, 0, 1),
    threshold: float = arg(0.7, 0, 1),
    seed: int = arg(0, 0, 10_000),
    exclude_personal: bool = False,
) -> Result:
    """Serve questions of a bookshop from three response caches: exact text, normalised text, similar text.

    80 meanings (20 titles, 4 aspects) in 4 wordings; the k-th most frequent has weight 1 / k^skew. personal: share of
    questions with an order number, for which another customer's answer is wrong; exclude_personal: they bypass the
    caches. Nothing expires.

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
    served = {name: _serve(cache, asked, exclude_personal) for name, cache in caches.items()}
    return Result(
        distinct=len({meaning for _, meaning in asked}) / questions,
        **{name: hits / questions for name, (hits, _) in served.items()},
        **{f"false_{name}": wrong / questions for name, (_, wrong) in served.items()},
    )


def _serve(cache: ResponseCache, asked: list[tuple[str, str]], exclude_personal: bool) -> tuple[int, int]:
    """(answers from the cache, wrong ones among them). A right answer has the question's meaning."""
    hits = wrong = 0
    for text, meaning in asked:
        if exclude_personal and _ORDER.search(text):
            continue
        answer = cache.get(text)
        if answer is None:
            cache.put(text, meaning)
        else:
            hits += 1
            wrong += answer != meaning
    return hits, wrong


STALENESS = ("never_expires", "ttl", "version_of_all", "version_of_title")
"""Rules that end the life of a cached answer."""


@experiment("E48")
def response_staleness(
    questions: int = arg(2000, 10, 5000),
    skew: float = arg(1.0, 0, 3),
    change_every: float = arg(100.0, 1, 100_000),
    ttl: float = arg(200.0, 0, 100_000),
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Serve questions about a catalogue that changes, and count the hits that are out of date.

    One question a second about one of 20 titles and 4 aspects, the k-th most frequent with weight 1 / k^skew; a cache
    with normalised keys. Somewhere in the catalogue a title changes every `change_every` seconds on average
    (exponential), and all answers about it with it. never_expires: an answer stays. ttl: it expires after `ttl`
    seconds. version_of_all: the key holds the catalogue's version. version_of_title: it holds the title's.

    Returns: By rule, in the order of `rules`.
        rules
        hits [share]: Answers from the cache over all questions.
        stale [share]: Answers from the cache that were true once and are not any more, over all questions.
        stale_of_hits [share]: The same over the answers from the cache.
        oldest_stale [s]: Longest time since the change that made a served answer wrong.
        engine_calls [requests]: Questions that the engine answered.
        changes [changes]: Changes of the catalogue, one number.
    """
    rng = Random(f"staleness-{seed}")
    meanings = [(title, aspect) for title in TITLES for aspect in ASPECTS]
    rng.shuffle(meanings)
    weights = [1 / (rank + 1) ** skew for rank in range(len(meanings))]
    gaps = [rng.expovariate(1 / change_every) for _ in range(int(3 * questions / change_every) + 30)]
    changes = [(when, rng.choice(TITLES)) for when in accumulate(gaps) if when < questions]
    asked = [rng.choices(meanings, weights)[0] for _ in range(questions)]
    rows = [_serve_changing(rule, asked, changes, ttl) for rule in STALENESS]
    hits, stale, oldest = (list(column) for column in zip(*rows, strict=True))
    return Result(
        rules=list(STALENESS),
        hits=[count / questions for count in hits],
        stale=[count / questions for count in stale],
        stale_of_hits=[wrong / count if count else 0.0 for count, wrong in zip(hits, stale, strict=True)],
        oldest_stale=oldest,
        engine_calls=[questions - count for count in hits],
        changes=len(changes),
    )


def _serve_changing(
    rule: str, asked: list[tuple[str, str]], changes: list[tuple[float, str]], ttl: float
) -> tuple[int, int, float]:
    """Return (answers from the cache, stale ones among them, age in seconds of the worst one's error)."""
    cache = ResponseCache(normalise, ttl=ttl if rule == "ttl" else math.inf)
    versions: dict[str, int] = dict.fromkeys(TITLES, 0)
    outdated: dict[tuple[str, int], float] = {}
    """Moment at which a version of a title ended."""
    pending = changes[::-1]
    hits = stale = 0
    oldest = 0.0
    for now, (title, aspect) in enumerate(asked):
        while pending and pending[-1][0] <= now:
            when, changed = pending.pop()
            outdated[changed, versions[changed]] = when
            versions[changed] += 1
        keyed = {"version_of_all": sum(versions.values()), "version_of_title": versions[title]}.get(rule, "")
        question = f"What is the {aspect} of {title}? {keyed}"
        answer = cache.get(question, now)
        if answer is None:
            cache.put(question, str(versions[title]), now)
            continue
        hits += 1
        if int(answer) != versions[title]:
            stale += 1
            oldest = max(oldest, now - outdated[title, int(answer)])
    return hits, stale, oldest


def response_staleness_chart(result: Result) -> dict[str, Any]:
    """Hits and stale answers by rule."""
    return vega(
        {"rule": result.rules, "hits": result.hits, "stale": result.stale},
        POINTS,
        x=("hits:Q", {"axis": {"format": "%"}}),
        y=("stale:Q", {"axis": {"format": "%"}}),
        color="rule:N",
    )
