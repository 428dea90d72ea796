"""Drafters for tests: right as often as a test wants."""

from __future__ import annotations

from typing import ClassVar

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, RequestInit
from engine.engine_core import EngineCore
from engine.spec.base import DrafterContext, DraftStep
from tests.engine.harness import run, tokens

PATH = "tests.engine.drafters:Scripted"


class Scripted:
    """Knows what every request will say, by its prompt, and errs at every `wrong_every`-th position."""

    answers: ClassVar[dict[tuple[int, ...], list[int]]] = {}
    wrong_every: ClassVar[int] = 0
    """0: never wrong."""

    def __init__(self, context: DrafterContext) -> None:
        self.vocab_size = context.model_config.vocab_size

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        pass

    def propose(self, step: DraftStep) -> list[list[int]]:
        rows = zip(step.slots, step.lengths, step.max_drafts, strict=True)
        return [self._drafts(step.token_ids[slot, :length].tolist(), count) for slot, length, count in rows]

    def _drafts(self, text: list[int], count: int) -> list[int]:
        for prompt, answer in self.answers.items():
            if tuple(text[: len(prompt)]) == prompt:
                places = range(len(text), min(len(prompt) + len(answer), len(text) + count))
                return [self._draft(answer[place - len(prompt)], place) for place in places]
        return []

    def _draft(self, right: int, place: int) -> int:
        is_wrong = self.wrong_every and place % self.wrong_every == 0
        return (right + 1) % self.vocab_size if is_wrong else right

    @classmethod
    def learn(cls, requests: list[Request], outputs: dict[str, list[EngineCoreOutput]]) -> None:
        said = tokens(outputs)
        cls.answers = {tuple(item.prompt_token_ids): said[item.request_id] for item in requests}


class Acceptance:
    """Counts what a run's drafts came to."""

    def __init__(self) -> None:
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = self.num_steps = 0
        self.per_pos: list[int] = []

    @property
    def rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens


def counted_run(
    engine: EngineCore, requests: list[Request]
) -> tuple[dict[str, list[EngineCoreOutput]], Acceptance]:
    """`harness.run`, and the counters of its steps."""
    counted, scheduler, update = Acceptance(), engine.scheduler, engine.scheduler.update

    def watched(*args: object) -> list[EngineCoreOutput]:
        outputs, stats = update(*args), scheduler.stats
        counted.num_steps += 1
        counted.num_drafts += stats.num_drafts
        counted.num_draft_tokens += stats.num_draft_tokens
        counted.num_accepted_tokens += stats.num_accepted_tokens
        for place, count in enumerate(stats.num_accepted_tokens_per_pos):
            counted.per_pos += [0] * (place + 1 - len(counted.per_pos))
            counted.per_pos[place] += count
        return outputs

    scheduler.update = watched
    try:
        return run(engine, requests), counted
    finally:
        scheduler.update = update
