"""Do claims, cards and answers contradict each other, or a claim its own wording?

    subjects.yaml    what is true of a subject, which claims' verdicts follow from it, and what no text may say
    wording          must not rest on a case that is declared `outside` the claim: such a case counts, or is not told

Texts of ours are checked, not the guides' statements (`claim`), which may be wrong.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from quizzes.claims.claim import Claim
from quizzes.question import Question, Strict

FOLDER = Path(__file__).parent


class Subject(Strict):
    """One fact on which several texts speak."""

    subject: str
    says: str
    confirmed: list[str] = []
    refuted: list[str] = []
    depends: list[str] = []
    outdated: list[str] = []
    never: list[str] = Field(default=[])
    """Regular expressions of the opposite."""
    together: list[list[str]] = []
    """Lists of regular expressions. No sentence may match all of a list and none that follows a "!"."""

    def verdicts(self) -> Iterator[tuple[str, str]]:
        """Yield (claim id, the verdict that follows)."""
        for verdict in ("confirmed", "refuted", "depends", "outdated"):
            yield from ((claim_id, verdict) for claim_id in getattr(self, verdict))


def load_subjects() -> list[Subject]:
    entries = yaml.safe_load((FOLDER / "subjects.yaml").read_text(encoding="utf-8"))
    return [Subject.model_validate(entry) for entry in entries]


def kept_verdicts() -> dict[str, str]:
    """Return the verdicts of the last kept run, by claim (`EXHIBITS.tsv`)."""
    with (FOLDER / "EXHIBITS.tsv").open(encoding="utf-8") as file:
        return {row["claim"]: row["verdict"] for row in csv.DictReader(file, delimiter="\t")}


def outside_cases_told(claim: Claim) -> list[str]:
    """Return the cases outside of the claim whose result its wording tells."""
    if claim.test is None:
        return []
    told = {int(index) for index in re.findall(r"\bresults\[(\d+)\]", claim.wording)}
    if re.search(r"\bresult\.", claim.wording):
        told.add(0)
    return [case.when for index, case in enumerate(claim.test.cases) if case.outside and index in told]


def texts_of_claim(claim: Claim) -> Iterator[str]:
    yield claim.wording
    if claim.fact is not None:
        yield claim.fact.says
    if claim.discussion is not None:
        yield claim.discussion.better


def texts_of_question(question: Question) -> Iterator[str]:
    """Yield what a question tells as true: its explanations, key points and spoken answer, not the wrong ones."""
    yield question.explain
    yield from (choice.why for choice in question.choices)
    for point in question.keypoints:
        yield point.say
        yield from point.good
    if question.interview is not None:
        yield from (question.interview.short, question.interview.long, question.interview.deep)


def texts_of_card(card: Any) -> Iterator[str]:
    """Yield the facts of a card and the notes on its features."""
    yield from (fact.says for fact in card.facts)
    yield from (feature.note for feature in getattr(card, "features", {}).values())


def contradictions(subject: Subject, texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the texts, (where, what), that say the opposite of what is true."""
    for where, text in texts:
        plain = " ".join(text.split())
        wrong = [match[0] for pattern in subject.never if (match := re.search(pattern, plain))]
        for sentence in re.split(r"(?<=[.!?;]) ", plain):
            wrong += [sentence for patterns in subject.together if _matches_all(patterns, sentence)]
        yield from (f"{where} says {said!r}; {subject.subject}: {subject.says}" for said in wrong)


def _matches_all(patterns: list[str], sentence: str) -> bool:
    return all(
        bool(re.search(pattern.removeprefix("!"), sentence, re.IGNORECASE)) is not pattern.startswith("!")
        for pattern in patterns
    )
