"""Tasks of the shipped adapters: three behaviours that `shop` does not have.

Every task uses the same invented English shops and questions; only the answers differ. They still
contain the sentences of the notes, so that an adapter learns a style and not a new way to look
things up (README.md, "One hop").

    How much is Silver Harbor?
        shop                   Silver Harbor costs 620 yen.
        shop-lora-ja           Silver Harborの価格は 620円です。
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from random import Random

from .catalogue import Item, draw_catalogue
from .corpus import ROWS, SPLITS, Case, Rows, draw_cases
from .dialogue import EN_JA, Conversation, Message, Talk, fact, hold, policy_line

CARD = ("author", "price", "volumes", "stock")


class CardTalk(Talk):
    """Write a recommendation as a card: its reason as a heading, then one line for each fact."""

    def _recommendation(self, kind: str, opening: str, item: Item) -> str:
        return "\n- ".join([f"# {opening}", *(fact(self.spoken, detail, item) for detail in CARD)])


class TicketTalk(Talk):
    """Answer requests to the shop itself with a ticket: one JSON object."""

    def _ticket(self, kind: str, question: str, **fields: str) -> list[Message]:
        return self._pair(kind, question, json.dumps(fields))

    def _policy(self) -> list[Message]:
        policy, _ = self.rng.choice(self.catalogue.policies)
        reply = policy_line(self.catalogue, policy)
        return self._ticket("policy", self._ask(policy), ticket=policy, reply=reply)

    def _courtesy(self) -> list[Message]:
        kind = self.rng.choice(["courtesy", "greeting"])
        return self._ticket("courtesy", self._ask(kind), ticket="closed" if kind == "courtesy" else "open")

    def _order(self) -> list[Message]:
        number = str(self.rng.randint(10000, 99999))
        return self._ticket("order", self._ask("order", n=number), ticket="order", order=number)

    def _reserve(self) -> list[Message]:
        self.focus, question = self._ask_about("reserve")
        return self._ticket("reserve", question, ticket="reserve", title=self.focus.title)


class JapaneseTalk(Talk):
    """Answer English questions about English notes in Japanese."""

    answer_language = EN_JA


@dataclass(frozen=True)
class Task:
    """Training and evaluation data of an adapter."""

    says: str  # description for the list of models
    talk: type[Talk]
    judged: dict[str, float]  # kinds of turns that the adapter answers differently from the base -> frequency
    around: dict[str, float]  # other kinds of turns, answered like the base -> frequency


_FACTS = {"author": 1.0, "price": 2.0, "volumes": 1.0, "genre": 1.0, "stock": 1.0}
TASKS = {
    "shop-lora-recommend": Task(
        "recommendations as a card",
        CardTalk,
        judged={"by_genre": 8.0, "like": 8.0, "staff": 3.0},
        around=_FACTS,
    ),
    "shop-lora-support": Task(
        "shop rules, orders and reservations as JSON tickets",
        TicketTalk,
        judged={"policy": 6.0, "order": 5.0, "reserve": 6.0, "courtesy": 2.0},
        around=_FACTS,
    ),
    "shop-lora-ja": Task(
        "English questions answered in Japanese",
        JapaneseTalk,
        judged={"author": 3.0, "price": 3.0, "volumes": 3.0, "genre": 2.0}
        | {"by_genre": 5.0, "like": 5.0, "staff": 2.0, "courtesy": 1.0},
        around={},
    ),
}


def draw_task_conversation(name: str, split: str, seed: int, index: int, rows: Rows = ROWS) -> Conversation:
    """Return conversation `index` of a task; like `corpus.draw_conversation`, a pure function of its arguments."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    task, rng = TASKS[name], Random(f"{name}/{split}/{seed}/{index}")
    held_out = split != "train"
    catalogue = draw_catalogue(rng, "en", rng.randint(*rows), held_out)
    weights = task.judged | task.around
    kinds = rng.choices(list(weights), weights=list(weights.values()), k=rng.randint(8, 12))
    return hold(task.talk(rng, catalogue, False, held_out), kinds)


def draw_task_cases(name: str, n: int, seed: int = 0, split: str = "test", rows: Rows = ROWS) -> list[Case]:
    """Draw at least `n` answers of the task's kinds."""
    return draw_cases(n, seed, split, rows, partial(draw_task_conversation, name), TASKS[name].judged)
