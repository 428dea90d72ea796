"""Entries of cheat sheets and flash cards, made from the bank's own figures and from the cards.

A spoken question gives its 30-second answer; any other gives the answers that its experiment, formula or options
decide for the numbers of one seed, and the explanation with these numbers. Nothing is typed for a sheet.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quizzes.cards.card import Card, EngineCard, HardwareCard, PaperCard, ReleaseCard, feature_label
from quizzes.cards.card_list import Cards
from quizzes.cards.hardware import MODEL, figures
from quizzes.cards.miniature import Run, reproduce
from quizzes.claims.report import number
from quizzes.experiments.registry import get
from quizzes.instance import Instance, draw
from quizzes.question import Question
from quizzes.question_bank import Bank


@dataclass(frozen=True)
class Entry:
    """One question with its answer. Texts use Markdown's bold, code and lists."""

    id: str
    topic: str
    title: str
    front: str
    """The question with its numbers and options."""
    answer: str
    """The figures or options, on one line; "" for a spoken answer."""
    back: str
    """The explanation or the spoken answer, with the numbers of the seed."""
    exhibit: str = ""
    """Code, a log or a table, shown line by line."""


def lines(text: str) -> list[str]:
    """Return the lines with wrapped paragraphs joined; items (dashes; 1, 2, 3 in turn), tables and blank lines stay."""
    joined: list[str] = []
    items = 0
    for line in text.strip().splitlines():
        is_item = bool(re.match(rf"\s*{items + 1}\. ", line))
        items += is_item
        starts = is_item or not line.strip() or re.match(r"\s*[-*] |   |\|", line)
        if joined and joined[-1].strip() and not starts:
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line.rstrip())
    return joined


def question_ids(bank: Bank, topics: list[str], role: str | None) -> list[str]:
    """Return the questions of these topics and this role, in the order of the topics."""
    entries = [entry for entry in bank if entry.topic in topics and (role is None or role in entry.roles)]
    return [
        entry.id for entry in sorted(entries, key=lambda entry: (topics.index(entry.topic), entry.difficulty))
    ]


def card_ids(cards: Cards, topics: list[str]) -> dict[str, str]:
    """Return the cards of these topics: id -> the first of the topics that it belongs to."""
    return {
        entry.id: next(topic for topic in topics if topic in entry.topics)
        for entry in cards
        if set(topics) & set(entry.topics)
    }


def of_question(question: Question, seed: int, run: Run) -> Entry:
    """Return the entry of a question. Raises what drawing, rendering or `run` raises.

    run: experiment and arguments -> result. A question whose experiment measures time gets no figures, since they
    would be those of one busy moment.
    """
    instance = draw(question, seed)
    if question.interview is not None:
        spoken = instance.render(question.interview.short)
        return Entry(question.id, question.topic, question.title, instance.prompt, "", spoken)
    front = "\n".join([instance.prompt, *_options(instance)])
    experiment = question.experiment
    if experiment is not None and get(experiment.run).determinism != "exact":
        back = f"Measured, so the figures are those of your machine: `prep quiz --question {question.id}`"
        return Entry(question.id, question.topic, question.title, front, "", back)
    result = None if experiment is None else run(experiment.run, instance.run_args())
    expected = instance.expected(result)
    exhibit = instance.render(question.exhibit, result=result) if question.exhibit else ""
    back = instance.render(question.explain, result=result, expected=expected)
    return Entry(
        question.id, question.topic, question.title, front, _answer(instance, expected), back, exhibit
    )


def _options(instance: Instance) -> Iterator[str]:
    """Yield choices or items as list entries, in the order of the seed."""
    texts = {item.id: item.text for item in instance.question.items}
    yield from (f"- {instance.render(choice.text)}" for choice in instance.choices())
    yield from (f"- {instance.render(texts[item])}" for item in (instance.items() if texts else ()))


def _answer(instance: Instance, expected: dict[str, Any]) -> str:
    """Return the right answers on one line."""
    question = instance.question
    texts = {choice.id: choice.text for choice in question.choices}
    texts |= {item.id: item.text for item in question.items}
    units = {answer.id: answer.unit or "" for answer in question.answers}
    parts = []
    for name, value in expected.items():
        if name in units:
            parts.append(f"{name.replace('_', ' ')}: {_with_unit(name, value, units[name])}")
        else:
            parts.append("; ".join(instance.render(texts[option]).rstrip(".") for option in value))
    return " · ".join(parts)


def _with_unit(name: str, value: Any, unit: str) -> str:
    """Return 36 blocks, 1 block, 12 (of an answer called block, with the unit block)."""
    is_word = len(unit) > 3 and unit.endswith("s")
    singular = unit.removesuffix("s") if is_word else unit
    if isinstance(value, bool) or singular == name:
        return number(value)
    return f"{number(value)} {singular if value == 1 else unit}".strip()


def of_card(card: Card, topic: str, run: Run) -> Entry:
    """Return the entry of a card. The claim of a paper runs."""
    facts = [f"- {fact.says} ({card.sources[fact.source].as_of})" for fact in card.facts]
    front, answer = f"What do you know about {card.title}?", ""
    if isinstance(card, PaperCard):
        front = f"{card.title} ({card.venue}): what is the idea, and how would you show that it works?"
        outcome = reproduce(card, run)
        verdict = "holds here" if outcome.holds else "does not hold here"
        facts = [card.idea, *facts, f"- In miniature: {card.miniature.claim} It {verdict}: {outcome.shows}"]
    elif isinstance(card, HardwareCard):
        front = f"{card.title}: memory, bandwidth, dense arithmetic, and the ridge points?"
        facts = [*(f"- {_device(device)}" for device in card.devices), *facts]
    elif isinstance(card, EngineCard):
        front = f"{card.title}: what would you say about it, and as of when?"
        partly = [
            f"{feature_label(name)} ({cell.note})"
            for name, cell in card.features.items()
            if cell.has == "partly"
        ]
        facts += [f"- Only in part: {'; '.join(partly)}"] if partly else []
    elif isinstance(card, ReleaseCard):
        front, answer = f"What came with vLLM {card.version}, and when?", card.date
    return Entry(card.id, topic, card.title, front, answer, "\n".join(facts))


def _device(device: str) -> str:
    """Return the figures of a device in one sentence."""
    of_device = figures(device)
    rates = "; ".join(
        f"{r.dtype} {number(r.teraflops)} TFLOP/s, ridge {r.ridge:.0f} FLOP/B" for r in of_device.rates
    )
    floor = (
        ""
        if of_device.floor_ms is None
        else f" One decode step of {MODEL} in 16 bits: at least {of_device.floor_ms:.1f} ms."
    )
    return f"{device}: {of_device.memory_gib:.0f} GiB, {of_device.gb_per_s:,.0f} GB/s; {rates}.{floor}"
