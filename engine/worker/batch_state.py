"""State of the running requests on a worker: token and block tables with a row per state slot.

A request keeps its state slot until it finishes or is preempted. The rows of a step index the slots, so nothing is
ever moved or condensed:

    slot                token_ids                      block_table
     0   "a"  [ 5 9 2 7 | stale ............ ]   [ 12 3 | stale ... ]
     1   free [ stale ...................... ]   [ stale .......... ]
     2   "b"  [ 8 8 1 4 6 3 | stale ........ ]   [ 7 15 | stale ... ]
                        `- num_tokens                   `- num_blocks

Source: vLLM v1/worker/gpu/states.py (fixed slots), mini-sglang scheduler/table.py (token table).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.core.sched_output import RequestInit, Scheduled


class BatchState:
    """Tables with one row per state slot. Entries beyond a row's length are stale and never read."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        # One column more than max_model_len: the token sampled for a full request is written there.
        self._token_table = np.zeros((num_slots, max_model_len + 1), np.int32)
        self.token_ids = self._token_table[:, :max_model_len]
        self.block_table = np.zeros((num_slots, -(-max_model_len // block_size)), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int64)
        self.num_prompt_tokens = np.zeros(num_slots, np.int64)
        self.num_blocks = np.zeros(num_slots, np.int64)
        self.lora_slot = np.full(num_slots, -1, np.int32)
        """LoRA slot of the request's adapter; -1: none."""
        self.slot_of: dict[str, int] = {}
        self.num_changes = 0
        """Number of changes of `slot_of`."""
        self._free_slots = list(range(num_slots - 1, -1, -1))

    def add(self, request_id: str, init: RequestInit) -> int:
        """Assign a slot to a request that starts or resumes; return it."""
        slot = self.slot_of[request_id] = self._free_slots.pop()
        self.num_changes += 1
        self.token_ids[slot, : len(init.token_ids)] = init.token_ids
        self.num_tokens[slot] = len(init.token_ids)
        self.num_prompt_tokens[slot] = init.num_prompt_tokens
        self.num_blocks[slot] = 0
        self.lora_slot[slot] = -1
        return slot

    def remove(self, request_id: str) -> int | None:
        """Free the slot of a request that finished or was preempted; return None if it had none."""
        slot = self.slot_of.pop(request_id, None)
        if slot is not None:
            self._free_slots.append(slot)
            self.num_changes += 1
        return slot

    def append_blocks(self, rows: list[Scheduled]) -> None:
        """Append the blocks that the scheduler allocated in this step to the block tables."""
        for row in rows:
            if row.new_block_ids:
                slot = self.slot_of[row.request_id]
                start = self.num_blocks[slot]
                end = start + len(row.new_block_ids)
                self.block_table[slot, start:end] = row.new_block_ids
                self.num_blocks[slot] = end

    def write_drafts(self, rows: list[Scheduled]) -> bool:
        """Write the step's drafts after the known tokens, without counting them. Return whether there are any.

        Sampled tokens overwrite drafts that are not accepted.
        """
        has_drafts = False
        for row in rows:
            if drafts := row.spec_token_ids:
                slot = self.slot_of[row.request_id]
                start = self.num_tokens[slot]
                self.token_ids[slot, start : start + len(drafts)] = drafts
                has_drafts = True
        return has_drafts

    def append_several(self, slots: np.ndarray, token_ids: list[list[int]]) -> None:
        """Append the accepted drafts of each slot and the token after them."""
        for slot, tokens in zip(slots.tolist(), token_ids, strict=True):
            start = self.num_tokens[slot]
            self._token_table[slot, start : start + len(tokens)] = tokens
            self.num_tokens[slot] = start + len(tokens)

    def set_tokens(self, request_id: str, start: int, token_ids: Sequence[int]) -> None:
        """Write tokens that another process sampled; they become the last known ones."""
        slot = self.slot_of[request_id]
        end = start + len(token_ids)
        self.token_ids[slot, start:end] = token_ids
        self.num_tokens[slot] = end

    def append_tokens(self, slots: np.ndarray, token_ids: np.ndarray) -> None:
        """Append one sampled token per slot; that of a full row is dropped, since it ends the request."""
        lengths = self.num_tokens[slots]
        self._token_table[slots, lengths] = token_ids
        self.num_tokens[slots] = lengths + 1
