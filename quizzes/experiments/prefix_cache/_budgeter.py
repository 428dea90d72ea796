"""Trimming of a chat's prompt to a token budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Policy = Literal["none", "slide", "bulk"]


@dataclass
class Budgeter:
    """A system prompt and the turns after it, at most `budget` tokens in all.

    none   keeps everything
    slide  drops as few of the oldest turns as needed: at the budget, before every request
    bulk   drops the oldest turns down to half the budget once it is exceeded: rarely, many at once
    """

    system: list[int]
    budget: int
    policy: Policy
    turns: list[list[int]] = field(default_factory=list)
    num_cuts: int = 0
    """Number of times that turns were dropped."""

    def add(self, turn: list[int]) -> None:
        self.turns.append(turn)

    def prompt(self, question: list[int]) -> list[int]:
        """Return the history that fits and the question; system prompt and question are never cut."""
        if self.policy != "none" and self._size(question) > self.budget:
            goal = self.budget if self.policy == "slide" else self.budget // 2
            while self.turns and self._size(question) > goal:
                self.turns.pop(0)
            self.num_cuts += 1
        return [*self.system, *(token for turn in self.turns for token in turn), *question]

    def _size(self, question: list[int]) -> int:
        return len(self.system) + sum(map(len, self.turns)) + len(question)
