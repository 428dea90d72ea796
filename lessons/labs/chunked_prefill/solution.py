"""Lab chunked-prefill: choose the token budget of the next step.

The seam is `max_num_batched_tokens` of engine/core/scheduler.py: a constant there, set before every step here. A step
computes one token for each request that decodes, then prompt tokens up to the budget. All requests of a step get their
tokens at its end, so a large chunk of a prompt delays the next token of every request that decodes.

    seconds    target --------------------------------------      a step takes about
               aim    - - - - - - - - - - - - - - - -.-'- - -          base + cost x prompt tokens
                                               .-'                base: the step of the decodes alone
               base   ------------------.-'                       room = aim x target - base
                                         |<-- chunk -->|          chunk = room / cost

Chunked prefill with a constant budget is Sarathi-Serve (Agrawal et al. 2024, 2403.02310, section 4). vLLM:
v1/core/sched/scheduler.py, `token_budget`.
"""

from __future__ import annotations

import math


class ChunkController:
    """Learns base and cost from the steps so far, and sets the budget of the next one."""

    def __init__(
        self, target: float, least: int = 64, most: int = 8192, aim: float = 0.9, release: float = 0.125
    ) -> None:
        """target: seconds between two tokens. least, most: tokens. aim: share of the target that a step shall take.

        At first base is 0.0, cost is unknown and last is 0. Raises ValueError unless target > 0, 1 <= least <= most,
        0 < aim <= 1 and 0 < release <= 1.
        """
        if not target > 0:
            raise ValueError(f"target must be positive, got {target}")
        if not 1 <= least <= most:
            raise ValueError(f"1 <= least <= most, got {least} and {most}")
        if not (0 < aim <= 1 and 0 < release <= 1):
            raise ValueError(f"aim and release are shares in (0, 1], got {aim} and {release}")
        self.goal, self.least, self.most, self.release = aim * target, least, most, release
        self.base = 0.0
        """Seconds of a step of decodes alone."""
        self.cost: float | None = None
        """Seconds that one more prompt token adds."""
        self.last = 0
        """Prompt tokens of the last step that had any."""

    def budget(self, decodes: int) -> int:
        """Return the tokens of the next step. decodes: requests that compute one token in it.

        1. No decodes: `most`. No request waits for its next token.
        2. Otherwise decodes + chunk, at most `most`. While cost is unknown, chunk = least. After that it is
           floor(room / cost), where room = max(0, aim * target - base), and unlimited if cost is 0; but at most twice
           `last`; and in any case at least `least`.

        The call changes nothing.
        """
        if decodes == 0:
            return self.most
        return min(self.most, decodes + self._chunk())

    def _chunk(self) -> int:
        if self.cost is None:
            return self.least
        room = max(0.0, self.goal - self.base)
        fits = math.floor(room / self.cost) if self.cost > 0 else self.most
        return max(self.least, min(fits, 2 * self.last))

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step that has ended: what it computed, and how long it took.

        1. No prompt tokens: base = seconds, and nothing else changes.
        2. Otherwise last = prompt_tokens. A step shorter than base lowers it: base = min(base, seconds).
        3. Then, if prompt_tokens >= least (fewer say little): new = (seconds - base) / prompt_tokens. If cost is
           unknown or less than new, cost = new. Otherwise cost moves towards new by the share `release` of the way.

        Steps without decodes count too.
        """
        if prompt_tokens == 0:
            self.base = seconds
            return
        self.last = prompt_tokens
        self.base = min(self.base, seconds)
        if prompt_tokens < self.least:
            return
        new = (seconds - self.base) / prompt_tokens
        if self.cost is None or new > self.cost:
            self.cost = new
        else:
            self.cost += self.release * (new - self.cost)
