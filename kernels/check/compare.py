"""Compare an implementation's result of a case with the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.check.case import Case, copy_of, whole
from kernels.check.near_tie import token_is_a_near_tie
from kernels.check.tolerance import FP8_MAX, allowed, borders
from kernels.registry import get

IN_PLACE: dict[str, tuple[str, ...]] = {
    "reshape_and_cache": ("kv", "kv_scale"),
    "copy_blocks": ("target",),
    "lora_expand": ("y",),
    "apply_penalties": ("logits",),
    "apply_token_bitmask": ("logits",),
}
"""Arguments that an operation writes to; all others must keep their bits."""

EXACT = ("embedding", "reshape_and_cache", "copy_blocks", "apply_token_bitmask")
"""Operations without arithmetic, or with arithmetic that the contract fixes: the reference runs in the given types."""


class Mismatch(AssertionError):
    """The implementation is wrong; the message says where and by how much."""


@dataclass(slots=True)
class Worst:
    """The largest error met, as a share of what is allowed."""

    share: float = 0.0


def compare(before: Case, after: Case, got: Any, reference: Case, want: Any, like: Any) -> float:
    """Raise Mismatch, or return the largest error as a share of what is allowed.

    before: the case untouched. after, got: arguments and result of the implementation. reference, want: those of
    the reference, in float64. like: the reference's result in the types that were given.
    """
    worst = Worst()
    _same_form(got, like)
    _inputs_untouched(before, after)
    if before.op == "sample":
        _compare_samples(before, got, want)
    else:
        for number, (one, other) in enumerate(zip(_tensors(got), _tensors(want), strict=True)):
            _close(before, f"result {number}" if number else "result", one, other, worst)
    _targets(before, after, reference, worst)
    return worst.share


def _tensors(value: Any) -> tuple[Tensor, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


def _same_form(got: Any, like: Any) -> None:
    if len(_tensors(got)) != len(_tensors(like)):
        raise Mismatch(f"returns {len(_tensors(got))} tensors, not {len(_tensors(like))}")
    for one, other in zip(_tensors(got), _tensors(like), strict=True):
        if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
            shown = [f"{each.dtype} {list(each.shape)} on {each.device}" for each in (one, other)]
            raise Mismatch(f"returns {shown[0]}, not {shown[1]}")


def _inputs_untouched(before: Case, after: Case) -> None:
    targets = {
        value.untyped_storage().data_ptr()
        for name, value in after.arguments().items()
        if name in IN_PLACE.get(after.op, ()) and value is not None
    }
    for name, old in before.arguments().items():
        new = after.arguments()[name]
        if (
            isinstance(old, Tensor)
            and new.untyped_storage().data_ptr() not in targets
            and not _equal_bits(old, new)
        ):
            raise Mismatch(f"changes its input {name}")


def _equal_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(whole(one).view(torch.uint8), whole(other).view(torch.uint8))


def _close(case: Case, what: str, got: Tensor, want: Tensor, worst: Worst) -> None:
    """Element by element within tolerance; NaN where the reference has NaN, infinities equal."""
    if not got.is_floating_point():
        wrong = (got != want).nonzero()
        wrong = (
            torch.stack([each for each in wrong if int(each[0]) not in case.free_rows])
            if len(wrong)
            else wrong
        )
        if len(wrong):
            raise Mismatch(_where(what, got, want, wrong))
        return
    bound = allowed(case, want, got.dtype)
    error = (got.double() - want).abs()
    same = (got.isnan() & want.isnan()) | (got == want.to(got.dtype))
    error = torch.where(same, 0.0, error)
    right = same | (error <= bound)
    for row in case.free_rows:
        right[row] = True
        error[row] = 0
    if not right.all():
        raise Mismatch(_where(what, got, want, (~right).nonzero()))
    if error.numel():
        worst.share = max(worst.share, float((error / bound.clamp_min(1e-300)).nan_to_num().max()))


def _where(what: str, got: Tensor, want: Tensor, wrong: Tensor) -> str:
    first = tuple(wrong[0].tolist())
    place = ", ".join(map(str, first))
    return (
        f"{what}: {len(wrong)} of {got.numel()} elements are wrong, the first at [{place}]: "
        f"{_shown(got[first])}, reference {_shown(want[first])}"
    )


def _shown(value: Tensor) -> str:
    number = value.item()
    return f"{number:.7g}" if isinstance(number, float) else str(number)


# --- written in place ------------------------------------------------------------------------------------------


def _targets(before: Case, after: Case, reference: Case, worst: Worst) -> None:
    """Compare the whole memory of the targets, unwritten parts included."""
    for name in IN_PLACE.get(before.op, ()):
        old, got, want = (case.arguments().get(name) for case in (before, after, reference))
        if old is None or got is None or want is None:
            continue
        _untouched_outside(name, old, got, want)
        if before.op == "reshape_and_cache":
            _compare_cache(before, name, got, want)
        elif before.op in EXACT:
            _same_values(name, got, want)
        else:
            _close(before, name, got, want, worst)


def _untouched_outside(name: str, old: Tensor, got: Tensor, want: Tensor) -> None:
    """Memory that the reference leaves alone keeps its bits, also between the elements of a view."""
    old, got, want = whole(old), whole(got), whole(want)
    kept = (
        (want == old.to(want.dtype)) | (want.isnan() & old.isnan())
        if want.is_floating_point()
        else want == old
    )
    changed = kept & ~_same(got, old)
    if changed.any():
        raise Mismatch(_where(f"{name} is changed where it should not be", got, old, changed.nonzero()))


def _same(one: Tensor, other: Tensor) -> Tensor:
    """Equal, NaN to NaN; fp8 has no comparison of its own everywhere, so it is compared as float."""
    if one.is_floating_point():
        one, other = one.double(), other.double()
        return (one == other) | (one.isnan() & other.isnan())
    return one == other


def _same_values(name: str, got: Tensor, want: Tensor) -> None:
    same = _same(got, want)
    if not same.all():
        raise Mismatch(_where(name, got, want, (~same).nonzero()))


def _compare_cache(case: Case, name: str, got: Tensor, want: Tensor) -> None:
    """Equal codes, except where a value lies between two; scales to the last bit but one."""
    if name == "kv_scale":
        close = _same(got, want) | ((got - want).abs() <= 2.0**-22 * want.abs())
        if not close.all():
            raise Mismatch(_where(name, got, want, (~close).nonzero()))
        return
    same = _same(got, want)
    if got.dtype in (torch.int8, torch.float8_e4m3fn) and not same.all():
        quotient = _quotients(case)
        step, on_border = borders(quotient, got.dtype)
        same |= on_border & ((got.double() - quotient).abs() <= step * 0.51)
    if not same.all():
        raise Mismatch(_where(name, got, want, (~same).nonzero()))


def _quotients(case: Case) -> Tensor:
    """x / scale in float64 in the layout of the cache: what is rounded to a code. 0 in slots not written."""
    arguments = copy_of(case).arguments()
    key, value, kv = (arguments[name] for name in ("key", "value", "kv"))
    scaled = []
    for part, x in enumerate((key.double(), value.double())):
        scale = (
            x.abs().amax(-1, keepdim=True) / 127 if kv.dtype == torch.int8 else arguments["kv_scale"][part]
        )
        scaled.append((x / scale).nan_to_num().clamp(-FP8_MAX, FP8_MAX))
    exact = torch.zeros(kv.shape, dtype=torch.float64, device=kv.device)
    get("reshape_and_cache", "reference").load()(*scaled, exact, arguments["slot_mapping"])
    return exact


# --- tokens ----------------------------------------------------------------------------------------------------


def _compare_samples(case: Case, got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """Equal peaks; equal tokens unless float error decides between two."""
    (tokens, peaks), (wanted, highest) = got, want
    _same_values("peaks", peaks, highest.to(peaks.dtype))
    for row in (tokens != wanted).nonzero().flatten().tolist():
        if row in case.free_rows:
            continue
        if not token_is_a_near_tie(case, row, int(tokens[row])):
            raise Mismatch(
                f"row {row}: token {int(tokens[row])}, reference {int(wanted[row])}, and no near tie"
            )
