"""Speculative decoding as two numbers: drafts per step, and acceptance probability.

Drafts are accepted one after another until the first wrong one, each with probability `acceptance` (Leviathan et al.
2023, 2211.17192, section 3): k drafts give (1 - a^(k+1)) / (1 - a) tokens per step on average.
The scheduler receives drafts and rejections as from a real drafter, so blocks, budget and rollback are exact.
"""

from __future__ import annotations

from random import Random

from engine.config import ConfigError
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.sim.cost import CostModel, StepLoad


class Speculation:
    """Adds accepted drafts to the simulated outputs."""

    def __init__(
        self,
        num_speculative_tokens: int,
        acceptance: float,
        draft: CostModel | None = None,
        seed: int = 0,
        *,
        coverage: float = 1.0,
        lookup_s: float = 0.0,
    ) -> None:
        """draft: cost model of the drafter's steps; None: n-grams, which take `lookup_s` seconds per row.

        coverage: probability that a row gets drafts at all; looking up n-grams often finds nothing.
        """
        if num_speculative_tokens < 1:
            raise ConfigError(f"num_speculative_tokens must be at least 1, got {num_speculative_tokens}")
        if not 0 <= acceptance <= 1:
            raise ConfigError(f"acceptance is a probability, got {acceptance}")
        self.k = num_speculative_tokens
        self.acceptance = acceptance
        self.draft, self.coverage, self.lookup_s = draft, coverage, lookup_s
        self._rng = Random(f"speculation-{seed}")

    def answer(self, out: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Append the accepted drafts to each row's token, and propose the next ones."""
        for row in out.scheduled:
            sampled = result.sampled_token_ids.get(row.request_id)
            if sampled is None:
                continue
            accepted = 0
            while accepted < len(row.spec_token_ids) and self._rng.random() < self.acceptance:
                accepted += 1
            result.sampled_token_ids[row.request_id] = sampled * (1 + accepted)
            if self.coverage == 1 or self._rng.random() < self.coverage:
                result.draft_token_ids[row.request_id] = sampled * self.k

    def drafting_seconds(self, load: StepLoad) -> float:
        """Return seconds of k drafter steps, each with one token per row, or of the lookups."""
        if self.draft is None:
            return self.lookup_s * load.num_rows
        rows = load.num_rows
        context = load.decode_context or load.prefill_context
        return self.k * self.draft.seconds(StepLoad(rows, rows, rows, context))
