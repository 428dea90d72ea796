"""The check itself: it passes what is right, and sees one wrong character in any operation."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch

from kernels import registry
from kernels.check.case import Case, copy_of, whole, widened
from kernels.check.cases import cases
from kernels.check.compare import token_is_a_near_tie
from kernels.check.run import check
from kernels.operations import OPERATIONS

KERNELS = Path(registry.__file__).parent


def reference_module(op: str, old: str = "", new: str = "") -> types.ModuleType:
    """The reference's module made from its source text, with one piece of it replaced."""
    entry = registry.get(op, "reference")
    text = (KERNELS / entry.sources[0]).read_text()
    assert old in text, f"{entry.sources[0]} no longer holds {old!r}: the mutant needs an update"
    module = types.ModuleType(f"mutant_of_{op}")
    exec(compile(text.replace(old, new, 1) if old else text, f"<mutant of {op}>", "exec"), module.__dict__)
    return module


MUTANTS = {
    f"{op}: {mutant[0]}": (op, *mutant) for op, entry in OPERATIONS.items() for mutant in entry.mutants
}


@pytest.mark.parametrize(("op", "wrong", "old", "new"), MUTANTS.values(), ids=MUTANTS)
def test_a_mutated_implementation_is_caught(op: str, wrong: str, old: str, new: str) -> None:
    mutant = getattr(reference_module(op, old, new), op)
    assert check(op, mutant, size="tiny").failures, f"{wrong}, and the check sees nothing"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", registry.OPS)
def test_the_reference_in_its_own_precision_passes(op: str, dtype: torch.dtype) -> None:
    report = check(op, "reference", size="tiny", dtype=dtype, seed=3)
    if not report.ok:
        pytest.fail(str(report), pytrace=False)


@pytest.mark.parametrize("op", registry.OPS)
def test_a_seed_means_the_same_case_every_time(op: str) -> None:
    for one, other in zip(cases(op, seed=7), cases(op, seed=7), strict=True):
        assert (one.name, one.describe()) == (other.name, other.describe())
        for a, b in zip(one.args, other.args, strict=True):
            if isinstance(a, torch.Tensor):
                assert torch.equal(whole(a).view(torch.uint8), whole(b).view(torch.uint8))


def test_copies_keep_strides_and_sharing() -> None:
    cache = torch.randn(4, 3, 2)
    case = Case("copy_blocks", "", (cache[:, 1], cache[:, 1], torch.zeros(0, 2, dtype=torch.int64)))
    for made in (copy_of(case), widened(case)):
        source, target, _ = made.args
        assert source.stride() == cache[:, 1].stride() and source.storage_offset() == 2
        assert source.data_ptr() == target.data_ptr() != cache[:, 1].data_ptr()
        assert torch.equal(whole(source).float(), cache.flatten())


def test_a_result_that_depends_on_its_neighbours_is_caught() -> None:
    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        result = registry.get("rms_norm", "reference").load()(x, weight, eps)
        return torch.nextafter(result, torch.full_like(result, 9.0)) if x.shape[0] > 1 else result

    report = check("rms_norm", rms_norm)
    assert report.failures and "alone differs" in report.failures[0].message


def test_a_failed_case_says_what_is_needed_to_see_it_again() -> None:
    report = check("silu_and_mul", lambda x: x[..., : x.shape[-1] // 2] * 2, seed=4)
    assert not report.ok
    text = str(report)
    assert "elements are wrong, the first at [0, 0]" in text
    assert "x               float32 [1, 128]" in text


def test_an_implementation_that_raises_fails_the_case() -> None:
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        raise IndexError("out of shared memory")

    (first, *_) = check("silu_and_mul", silu_and_mul).failures
    assert first.message.startswith("IndexError: out of shared memory (")


def sampled(logits: list[float], *, temperature: float = 1.0, top_p: float = 1.0) -> Case:
    one = torch.ones(1)
    size = torch.tensor([len(logits)], dtype=torch.int32)
    keys = torch.tensor([[1, 2]], dtype=torch.int32)
    args = (torch.tensor([logits]), one * temperature, size, one * top_p, one * 0, keys)
    return Case("sample", "by hand", args)


def test_only_a_genuine_near_tie_excuses_another_token() -> None:
    """A token that does not win within rounding is wrong, and greedy rows have no rounding at all."""
    reference = registry.get("sample", "reference").load()
    case = sampled([5.0, 4.0, 3.0, 2.0], temperature=0.7)
    chosen = int(reference(*case.args)[0])
    others = [token for token in range(4) if token != chosen]
    assert token_is_a_near_tie(case, 0, chosen)
    assert not any(token_is_a_near_tie(case, 0, token) for token in others)
    greedy = sampled([1.0, 1.0, 1.0 - 1e-7], temperature=0.0)
    assert not any(token_is_a_near_tie(greedy, 0, token) for token in (0, 1, 2))


def test_a_token_on_the_border_of_top_p_may_stay_or_go() -> None:
    reference = registry.get("sample", "reference").load()
    wide = sampled([1.0, 1.0 - 1e-3])
    share = float(wide.args[0].double().softmax(-1)[0, 0])
    border = sampled([1.0, 1.0 - 1e-3], top_p=share)
    keys = border.args[5]
    for number in range(64):  # a row whose noise favours the second token
        keys[0, 1] = number
        if int(reference(*wide.args[:5], keys)[0]) == 1:
            break
    assert int(reference(*wide.args[:5], keys)[0]) == 1
    assert token_is_a_near_tie(border, 0, 0) and token_is_a_near_tie(border, 0, 1)


def test_an_output_that_is_not_written_is_noticed() -> None:
    """The memory of the right result, which the reference has freed, must not stand in for the missing row."""

    def all_but_the_last_row(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        y = torch.empty(*x.shape[:-1], half, dtype=x.dtype)
        y[:-1] = torch.nn.functional.silu(x[:-1, ..., :half]) * x[:-1, ..., half:]
        return y

    report = check("silu_and_mul", all_but_the_last_row)
    with_rows = [case.name for case in cases("silu_and_mul", seed=0) if case.args[0].numel() > 0]
    assert [failure.name for failure in report.failures] == with_rows
    assert not torch.are_deterministic_algorithms_enabled()
