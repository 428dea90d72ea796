"""Keeping a chat's prompt within a budget: which of the oldest turns go, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Policy = Literal["none", "slide", "bulk"]


@dataclass
class Budgeter:
    """A system prompt and the turns behind it, at most `budget` tokens of both.

    none   nothing is ever dropped
    slide  the oldest turns go, as few as needed, so near the budget some go before every request
    bulk   once the budget is passed, the oldest turns go until half of it is free: rarely, and many at once
    """

    system: list[int]
    budget: int
    policy: Policy
    turns: list[list[int]] = field(default_factory=list)
    num_cuts: int = 0
    """How often something was dropped."""

    def add(self, turn: list[int]) -> None:
        self.turns.append(turn)

    def prompt(self, question: list[int]) -> list[int]:
        """The history that fits, and the question. The system prompt and the question are never cut."""
        if self.policy != "none" and self._size(question) > self.budget:
            goal = self.budget if self.policy == "slide" else self.budget // 2
            while self.turns and self._size(question) > goal:
                self.turns.pop(0)
            self.num_cuts += 1
        return [*self.system, *(token for turn in self.turns for token in turn), *question]

    def _size(self, question: list[int]) -> int:
        return len(self.system) + sum(map(len, self.turns)) + len(question)
