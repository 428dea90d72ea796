"""Speculation in the worker: accept the drafts of this step, propose those of the next.

    rows        a: newest + 2 drafts     b: newest      c: newest + 1 draft
    logits      a0 a1 a2                 b0             c0 c1                      one row per sampled position
    kept        a's drafts as far as they agree and one token more, ...            engine/sample/draft_acceptance.py
    propose     the drafter proposes tokens after the new end of each                     engine/spec

Source: vLLM v1/worker/gpu_model_runner.py (propose_draft_token_ids) and v1/sample/rejection_sampler.py.
"""

from __future__ import annotations

from torch import Tensor

from engine.config import SpeculativeConfig
from engine.core.errors import WorkerContractError
from engine.core.sched_output import ModelRunnerOutput, RequestInit
from engine.sample.draft_acceptance import RejectionVerifier, num_agreeing
from engine.sample.sampler import Sampler, SamplerOutput, Verifier
from engine.spec.base import Drafter, DraftLengths, DraftStep
from engine.worker.batch_state import BatchState
from engine.worker.model_input import ModelInput


class Speculator:
    """One drafter and one verifier for all requests of a worker."""

    def __init__(
        self,
        config: SpeculativeConfig,
        drafter: Drafter,
        sampler: Sampler,
        state: BatchState,
        vocab_size: int,
    ) -> None:
        self.drafter, self.sampler, self.state, self.vocab_size = drafter, sampler, state, vocab_size
        self.lengths = DraftLengths(config, len(state.num_tokens))
        self.verifier: Verifier | None = None  # coupling: the sampler's choice decides
        if config.verifier == "rejection":
            probabilities = getattr(drafter, "draft_probabilities", None)
            self.verifier = RejectionVerifier(probabilities) if probabilities else RejectionVerifier()

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        self.lengths.reset(slot)
        self.drafter.add_request(slot, init, start)

    def remove_request(self, slot: int) -> None:
        self.drafter.remove_request(slot)

    def verify(self, batch: ModelInput, logits: Tensor, bitmask: Tensor | None) -> ModelRunnerOutput:
        """Choose a token at every position and append the accepted drafts and one token more."""
        sampled = self.sampler(logits, batch.sample_batch, bitmask, self.verifier)
        chosen = sampled.token_ids.tolist()
        result = ModelRunnerOutput()
        indices = list(dict.fromkeys(batch.sampled_rows.tolist()))  # each row once, in order
        slots = batch.slots[indices]
        kept, first = [], 0
        for index, slot in zip(indices, slots.tolist(), strict=True):
            row = batch.rows[index]
            drafts = row.spec_token_ids
            count = 1 + num_agreeing(chosen[first : first + 1 + len(drafts)], drafts)
            if drafts:
                self.lengths.observe(slot, len(drafts), count - 1)
            count = _without_errors(sampled, first, count)
            kept.append(chosen[first : first + count])
            if count:
                result.sampled_token_ids[row.request_id] = kept[-1]
            else:
                result.errors[row.request_id] = sampled.errors[first]
            if first in sampled.logprobs:
                result.logprobs[row.request_id] = [sampled.logprobs[first + i] for i in range(count)]
            first += 1 + len(drafts)
        self.state.append_several(slots, kept)
        return result

    def propose(self, batch: ModelInput, hidden: Tensor, result: ModelRunnerOutput) -> dict[str, list[int]]:
        """Return drafts for the requests that got tokens in this step, by request id."""
        lengths = self.state.num_tokens[batch.slots]
        wanted = self.lengths.wanted(batch.slots, len(batch.rows))
        longest = self.state.token_ids.shape[1] - 1  # the step that checks drafts adds one token
        step = DraftStep(
            slots=batch.slots,
            starts=batch.starts,
            lengths=lengths,
            max_drafts=[
                max(0, min(count, longest - length)) if row.request_id in result.sampled_token_ids else 0
                for row, count, length in zip(batch.rows, wanted, lengths.tolist(), strict=True)
            ],
            token_ids=self.state.token_ids,
            block_table=self.state.block_table,
            num_blocks=self.state.num_blocks,
            query_start=batch.query_start,
            hidden=hidden,
        )
        by_request: dict[str, list[int]] = {}
        for row, drafts, most in zip(batch.rows, self.drafter.propose(step), step.max_drafts, strict=True):
            if not drafts:
                continue
            if len(drafts) > most or min(drafts) < 0 or max(drafts) >= self.vocab_size:
                raise WorkerContractError(
                    f"{type(self.drafter).__name__}.propose returned {drafts}, which is not at most {most} token "
                    f"ids from 0 to {self.vocab_size - 1}"
                )
            by_request[row.request_id] = drafts
        return by_request


def _without_errors(sampled: SamplerOutput, first: int, count: int) -> int:
    """Return how many tokens from row `first` on precede one that could not be chosen.

    Tokens before a failed position are still valid; the next step fails at that position first.
    """
    return next((index for index in range(count) if first + index in sampled.errors), count)
