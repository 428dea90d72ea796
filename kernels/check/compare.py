"""Compare an implementation's result of a case with the reference's."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from kernels.check.case import Case, copy_of, whole
from kernels.check.tolerance import FP8_MAX, allowed, borders
from kernels.operations import OPERATIONS
from kernels.registry import get

SUM_ERROR = 1e-5
"""Error of a probability summed in fp32 over a vocabulary."""
SCORE_ERROR = 1e-6
"""Error of (logit - peak) / temperature + noise, relative to both; the noise is below 23."""
NOISE = 23.0


class Mismatch(AssertionError):
    """The implementation is wrong; the message says where and by how much."""


def compare(before: Case, after: Case, got: Any, reference: Case, want: Any, like: Any) -> float:
    """Raise Mismatch, or return the largest error as a share of what is allowed.

    before: the case untouched. after, got: arguments and result of the implementation. reference, want: those of
    the reference, in float64. like: the reference's result in the types that were given.
    """
    shares = [0.0]
    _same_form(got, like)
    _inputs_untouched(before, after)
    if before.op == "sample":
        _compare_samples(before, got, want)
    else:
        for number, (one, other) in enumerate(zip(_tensors(got), _tensors(want), strict=True)):
            shares.append(_close(before, f"result {number}" if number else "result", one, other))
    for name in OPERATIONS[before.op].in_place:
        old, new, wanted = (case.arguments().get(name) for case in (before, after, reference))
        if old is not None and new is not None and wanted is not None:
            shares.append(_target(before, name, old, new, wanted))
    return max(shares)


def _tensors(value: Any) -> tuple[Tensor, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


def _same_form(got: Any, like: Any) -> None:
    if len(_tensors(got)) != len(_tensors(like)):
        raise Mismatch(f"returns {len(_tensors(got))} tensors, not {len(_tensors(like))}")
    for one, other in zip(_tensors(got), _tensors(like), strict=True):
        if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
            shown = [f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}" for tensor in (one, other)]
            raise Mismatch(f"returns {shown[0]}, not {shown[1]}")


def _inputs_untouched(before: Case, after: Case) -> None:
    targets = {
        value.untyped_storage().data_ptr()
        for name, value in after.arguments().items()
        if name in OPERATIONS[after.op].in_place and value is not None
    }
    for name, old in before.arguments().items():
        new = after.arguments()[name]
        if not isinstance(old, Tensor) or new.untyped_storage().data_ptr() in targets:
            continue
        if not torch.equal(whole(old).view(torch.uint8), whole(new).view(torch.uint8)):
            raise Mismatch(f"changes its input {name}")


def _close(case: Case, what: str, got: Tensor, want: Tensor) -> float:
    """Compare within tolerance; NaN where the reference has NaN, infinities equal. Return the largest share of it."""
    if got.is_floating_point():
        bound = allowed(case, want, got.dtype)
        same = (got.isnan() & want.isnan()) | (got == want.to(got.dtype))
        error = torch.where(same, 0.0, (got.double() - want).abs())
        right = same | (error <= bound)
    else:
        right = got == want
    for row in case.free_rows:
        right[row] = True
    _require(right, what, got, want)
    if not got.is_floating_point() or not error.numel():
        return 0.0
    for row in case.free_rows:
        error[row] = 0
    return float((error / bound.clamp_min(1e-300)).nan_to_num().max())


def _require(right: Tensor, what: str, got: Tensor, want: Tensor) -> None:
    """Raise Mismatch with the first element that is not right."""
    wrong = (~right).nonzero()
    if not len(wrong):
        return
    first = tuple(wrong[0].tolist())
    shown = [
        f"{value:.7g}" if isinstance(value, float) else str(value)
        for value in (got[first].item(), want[first].item())
    ]
    raise Mismatch(
        f"{what}: {len(wrong)} of {got.numel()} elements are wrong, the first at [{', '.join(map(str, first))}]: "
        f"{shown[0]}, reference {shown[1]}"
    )


# --- written in place ------------------------------------------------------------------------------------------


def _target(case: Case, name: str, old: Tensor, got: Tensor, want: Tensor) -> float:
    """Compare the whole memory of a target, unwritten parts included; return the share of the tolerance."""
    _untouched_outside(name, old, got, want)
    if case.op == "reshape_and_cache":
        _compare_cache(case, name, got, want)
    elif OPERATIONS[case.op].exact:
        _require(_same(got, want), name, got, want)
    else:
        return _close(case, name, got, want)
    return 0.0


def _untouched_outside(name: str, old: Tensor, got: Tensor, want: Tensor) -> None:
    """Memory that the reference leaves alone keeps its bits, also between the elements of a view."""
    old, got, want = whole(old), whole(got), whole(want)
    kept = _same(want, old.to(want.dtype))
    _require(~kept | _same(got, old), f"{name} is changed where it should not be", got, old)


def _same(one: Tensor, other: Tensor) -> Tensor:
    """Equal, NaN to NaN; fp8 has no comparison of its own everywhere, so it is compared as float."""
    if one.is_floating_point():
        one, other = one.double(), other.double()
        return (one == other) | (one.isnan() & other.isnan())
    return one == other


def _compare_cache(case: Case, name: str, got: Tensor, want: Tensor) -> None:
    """Equal codes, except where a value lies between two; scales to the last bit but one."""
    right = _same(got, want)
    if name == "kv_scale":
        right |= (got - want).abs() <= 2.0**-22 * want.abs()
    elif got.dtype in (torch.int8, torch.float8_e4m3fn) and not right.all():
        quotient = _quotients(case)
        step, on_border = borders(quotient, got.dtype)
        right |= on_border & ((got.double() - quotient).abs() <= step * 0.51)
        right |= quotient.isnan()
    _require(right, name, got, want)


def _quotients(case: Case) -> Tensor:
    """x / scale in float64 in the layout of the cache: what is rounded to a code. 0 in slots not written.

    NaN in an int8 head that holds one: its scale is NaN, whatever the codes are.
    """
    arguments = copy_of(case).arguments()
    key, value, kv = (arguments[name] for name in ("key", "value", "kv"))
    scaled = []
    for part, x in enumerate((key.double(), value.double())):
        int8 = kv.dtype == torch.int8
        scale = x.abs().amax(-1, keepdim=True) / 127 if int8 else arguments["kv_scale"][part]
        steps = (x / scale).nan_to_num().clamp(-FP8_MAX, FP8_MAX)
        scaled.append(torch.where(scale.isnan(), torch.nan, steps) if int8 else steps)
    exact = torch.zeros(kv.shape, dtype=torch.float64, device=kv.device)
    get("reshape_and_cache", "reference").load()(*scaled, exact, arguments["slot_mapping"])
    return exact


# --- tokens ----------------------------------------------------------------------------------------------------


def _compare_samples(case: Case, got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """Equal peaks; equal tokens unless float error decides between two."""
    (tokens, peaks), (wanted, highest) = got, want
    highest = highest.to(peaks.dtype)
    _require(_same(peaks, highest), "peaks", peaks, highest)
    for row in (tokens != wanted).nonzero().flatten().tolist():
        if row not in case.free_rows and not token_is_a_near_tie(case, row, int(tokens[row])):
            raise Mismatch(
                f"row {row}: token {int(tokens[row])}, reference {int(wanted[row])}, and no near tie"
            )


def token_is_a_near_tie(case: Case, row: int, token: int) -> bool:
    """Whether `token` is right for this row as far as fp32 can tell. Greedy rows compare, so they have no ties.

    The reference decides: if it chooses the token as well once the row's parameters and that token's logit are moved
    by no more than fp32 arithmetic may move them, then the token is as good as its own.
    """
    reference = get("sample", "reference").load()
    logits, temperature, top_k, top_p, min_p, keys = (arg[row : row + 1].clone() for arg in case.args)
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
