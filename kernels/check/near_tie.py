"""May an implementation of `sample` choose another token than the reference? Only where float error decides.

Everything is asked from the reference itself: if it chooses the token as well once the row's parameters and that
token's logit are moved by no more than fp32 arithmetic may move them, then the token is as good as its own.
"""

from __future__ import annotations

from itertools import product

from kernels.check.case import Case
from kernels.registry import get

SUM_ERROR = 1e-5
"""Error of a probability summed in fp32 over a vocabulary."""
SCORE_ERROR = 1e-6
"""Error of (logit - peak) / temperature + noise, relative to both; the noise is below 23."""
NOISE = 23.0


def token_is_a_near_tie(case: Case, row: int, token: int) -> bool:
    """Whether `token` is right for this row as far as fp32 can tell. Greedy rows compare, so they have no ties."""
    reference = get("sample", "reference").load()
    one = [each[row : row + 1].clone() for each in case.args]
    logits, temperature, top_k, top_p, min_p, keys = one
    if float(temperature) == 0 or not 0 <= token < logits.shape[1]:
        return False
    logits, peak = logits.double(), float(logits.max())
    size = NOISE + abs(float(logits[0, token]) - peak) / float(temperature)
    lifted = logits.clone()
    lifted[0, token] += SCORE_ERROR * size * float(temperature)
    for row_logits, p_error, min_error in product((logits, lifted), (0, -1, 1), (0, -1, 1)):
        moved_p = (top_p.double() + p_error * SUM_ERROR).clamp(1e-9, 1.0)
        moved_min = (min_p.double() * (1 + min_error * SUM_ERROR)).clamp_min(0.0)
        chosen, _ = reference(row_logits, temperature.double(), top_k, moved_p, moved_min, keys)
        if int(chosen) == token:
            return True
    return False
