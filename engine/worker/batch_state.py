"""What a worker remembers about the requests that run on it.

A request gets a state slot when it starts and keeps it until it finishes or is preempted. The rows
of a step are an index into the slots, so nothing is ever moved, swapped or condensed:

    slot                token_ids                      block_table
     0   "a"  [ 5 9 2 7 | stale ............ ]   [ 12 3 | stale ... ]
     1   free [ stale ...................... ]   [ stale .......... ]
     2   "b"  [ 8 8 1 4 6 3 | stale ........ ]   [ 7 15 | stale ... ]
                        `- num_tokens                   `- num_blocks

Source: vLLM v1/worker/gpu/states.py (fixed slots), mini-sglang scheduler/table.py (token table).
"""

from __future__ import annotations

import numpy as np

from engine.core.sched_output import RequestInit, Scheduled


class BatchState:
    """Tables with one row per state slot. Everything right of a row's length is stale and never read."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        # One column more than a request can have tokens: what is sampled for a full one falls in there.
        self._token_table = np.zeros((num_slots, max_model_len + 1), np.int32)
        self.token_ids = self._token_table[:, :max_model_len]
        self.block_table = np.zeros((num_slots, -(-max_model_len // block_size)), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int64)
        self.num_prompt_tokens = np.zeros(num_slots, np.int64)
        self.num_blocks = np.zeros(num_slots, np.int64)
        self.lora_slot = np.full(num_slots, -1, np.int32)
        """Where the request's adapter lies on the device, -1 for none."""
        self.slot_of: dict[str, int] = {}
        self.num_changes = 0
        """How often a slot was given or taken: while it stands still, `slot_of` is what it was."""
        self._free_slots = list(range(num_slots - 1, -1, -1))

    def add(self, request_id: str, init: RequestInit) -> int:
        """Give a request that starts or resumes a slot; the row replaces all that was known of it."""
        slot = self.slot_of[request_id] = self._free_slots.pop()
        self.num_changes += 1
        self.token_ids[slot, : len(init.token_ids)] = init.token_ids
        self.num_tokens[slot] = len(init.token_ids)
        self.num_prompt_tokens[slot] = init.num_prompt_tokens
        self.num_blocks[slot] = 0
        self.lora_slot[slot] = -1
        return slot

    def remove(self, request_id: str) -> int | None:
        """Free the slot of a request that finished or was preempted; None if it never ran here."""
        slot = self.slot_of.pop(request_id, None)
        if slot is not None:
            self._free_slots.append(slot)
            self.num_changes += 1
        return slot

    def append_blocks(self, rows: list[Scheduled]) -> None:
        """Extend the block tables by what the scheduler handed out in this step."""
        for row in rows:
            if row.new_block_ids:
                slot = self.slot_of[row.request_id]
                start = self.num_blocks[slot]
                end = start + len(row.new_block_ids)
                self.block_table[slot, start:end] = row.new_block_ids
                self.num_blocks[slot] = end

    def write_drafts(self, rows: list[Scheduled]) -> bool:
        """Put the step's drafts behind the known tokens, where they are computed but not counted: is there any?

        They stay stale unless they are accepted: what is sampled is written over them.
        """
        drafted = [row for row in rows if row.spec_token_ids]
        for row in drafted:
            slot = self.slot_of[row.request_id]
            start = self.num_tokens[slot]
            self.token_ids[slot, start : start + len(row.spec_token_ids)] = row.spec_token_ids
        return bool(drafted)

    def append_several(self, slots: np.ndarray, token_ids: list[list[int]]) -> None:
        """Remember the accepted drafts of each slot and the token behind them."""
        for slot, tokens in zip(slots.tolist(), token_ids, strict=True):
            start = self.num_tokens[slot]
            self._token_table[slot, start : start + len(tokens)] = tokens
            self.num_tokens[slot] = start + len(tokens)

    def set_tokens(self, request_id: str, start: int, token_ids: list[int]) -> None:
        """Write what another process sampled; it ends what is known of the request."""
        slot = self.slot_of[request_id]
        end = start + len(token_ids)
        self.token_ids[slot, start:end] = token_ids
        self.num_tokens[slot] = end

    def append_tokens(self, slots: np.ndarray, token_ids: np.ndarray) -> None:
        """Remember one sampled token per slot. The last one of a full row is dropped: it ends the request."""
        lengths = self.num_tokens[slots]
        self._token_table[slots, lengths] = token_ids
        self.num_tokens[slots] = lengths + 1
