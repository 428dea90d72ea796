"""Align the lines of a step's bitmask with the rows of its logits.

    logits rows     decode b   decode a   prefill c, ends here        the scheduler has another order,
    mask            all        a's line   c's line                    and rows without a grammar have no line

Source: vLLM v1/worker/gpu/structured_outputs.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.core.sched_output import GrammarBitmask

ALL = -1
"""Word with every bit set."""


def bitmask_rows(
    bitmask: GrammarBitmask, positions: Sequence[tuple[str, int]], device: torch.device
) -> Tensor:
    """Return int32 [S, W] for logits rows of these (request id, index of the sampled position)."""
    line_of = {position: line for line, position in enumerate(bitmask.rows)}
    lines = np.array([line_of.get(position, -1) for position in positions], np.int64)
    words = np.full((len(positions), bitmask.words.shape[1]), ALL, np.int32)
    words[lines >= 0] = bitmask.words[lines[lines >= 0]]
    return torch.from_numpy(words).to(device)
