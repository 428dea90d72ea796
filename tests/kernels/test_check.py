"""The check itself: it passes what is right, and sees one wrong character in any operation."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import torch

from kernels import registry
from kernels.check.case import Case, copy_of, whole, widened
from kernels.check.cases import GENERATORS, cases
from kernels.check.compare import token_is_a_near_tie
from kernels.check.run import check

KERNELS = Path(registry.__file__).parent

MUTANTS = [
    # operation, what is wrong, text of the reference, what it becomes
    ("linear", "the bias is forgotten", "F.linear(x, weight, bias)", "F.linear(x, weight)"),
    ("gated_linear", "the bias is forgotten", "linear(x, weight, bias)", "linear(x, weight)"),
    ("norm_linear", "the product of the input", "linear(hidden, weight, bias)\n", "linear(x, weight, bias)\n"),
    ("norm_linear", "the residual is not returned", "weight, eps), x\n", "weight, eps), x * 2\n"),
    ("norm_linear", "the values get another sign", "(turned, rest), dim=1)", "(turned, -rest), dim=1)"),
    ("embedding", "the row before", "table[ids]", "table[ids - 1]"),
    ("rms_norm", "eps is ten times as large", "keepdim=True) + eps", "keepdim=True) + eps * 1e5"),
    ("rms_norm", "the input is overwritten", "x32 = wide(x)", "x32 = wide(x).mul_(1.0000001)"),
    ("rms_norm", "rows share a mean", "mean(dim=-1, keepdim=True)", "mean()"),
    ("fused_add_rms_norm", "the residual is added in place", "total = x + residual", "total = residual.add_(x)"),
    ("fused_add_rms_norm", "the sum is not returned", "weight, eps), total", "weight, eps), x"),
    ("rotary_embedding", "turns the other way", "first * cos - second * sin", "first * cos + second * sin"),
    ("rotary_embedding", "the rest is rotated away", "x[..., rotary_dim:]),", "x[..., rotary_dim:] * 0),"),
    ("silu_and_mul", "the halves are swapped", "F.silu(gate) * up", "F.silu(up) * gate"),
    ("reshape_and_cache", "padding is written", "(slot_mapping >= 0)", "(slot_mapping >= -1)"),
    ("reshape_and_cache", "one slot further", "slots % block_size", "(slots + 1) % block_size"),
    ("reshape_and_cache", "the next page", "slots // block_size", "(slots + 1) // block_size"),
    ("reshape_and_cache", "values for keys", "(key[real], value[real])", "(value[real], value[real])"),
    ("reshape_and_cache", "fp8 does not saturate", ".clamp(-most, most)", ".clamp(-400.0, 400.0)"),
    ("reshape_and_cache", "int8 truncates", "[..., None]).round()", "[..., None]).trunc()"),
    ("reshape_and_cache", "the scale is not stored", "kv_scale[blocks, part, :, offsets] = scale", "pass"),
    ("paged_attention", "one page too few", "-(-seq_len // block_size)", "max(1, (seq_len - 1) // block_size)"),
    (
        "paged_attention",
        "sees the next token",
        "key_position <= query_position",
        "key_position <= query_position + 1",
    ),
    ("paged_attention", "the window is one longer", "> query_position - sliding", ">= query_position - sliding"),
    ("paged_attention", "no scale", "query, key) * scale", "query, key)"),
    (
        "paged_attention",
        "heads in the wrong groups",
        "key.repeat_interleave(num_heads // num_kv_heads, dim=0)",
        "key.repeat(num_heads // num_kv_heads, 1, 1)",
    ),
    ("paged_attention", "padding is not zero", "zeros_like(query)", "ones_like(query)"),
    (
        "copy_blocks",
        "the wrong way round",
        "target[destination].copy_(source[origin])",
        "source[origin].copy_(target[destination])",
    ),
    ("copy_blocks", "the last pair is forgotten", "block_pairs.tolist()", "block_pairs.tolist()[:-1]"),
    ("int4_linear", "high nibble first", "unpack_int4(qweight)", "unpack_int4((qweight >> 4) | (qweight << 4))"),
    (
        "int4_linear",
        "zero points off by one",
        "- zero[..., None].to(torch.int16)",
        "- zero[..., None].to(torch.int16) - 1",
    ),
    ("int8_linear", "one scale for all rows", "rows.abs().amax(-1)", "rows.abs().amax(-1).amax().expand(len(rows))"),
    ("int8_linear", "truncates", ".round().clamp", ".trunc().clamp"),
    ("fp8_linear", "does not saturate at 448", "x.clamp(-FP8_MAX, FP8_MAX)", "x.clamp(-240.0, 240.0)"),
    ("fp8_linear", "no rounding", "rounded.double()", "(x / row_scale.clamp_min(1e-9)[:, None]).double()"),
    (
        "grouped_linear",
        "the last row of a group in the next",
        "enumerate(group_ends.tolist())",
        "enumerate([max(0, e - 1) for e in group_ends.tolist()[:-1]] + group_ends.tolist()[-1:])",
    ),
    ("lora_shrink", "rows without adapter get the first", "if adapter >= 0:", "if True:"),
    ("lora_expand", "no scaling", "added = scaling[adapter] * ", "added = "),
    ("lora_expand", "replaces in place of adding", "wide(y[tokens, start:end]) + added", "added"),
    (
        "sample",
        "top_k lets one more through",
        "top_k[:, None].long() - 1",
        "top_k[:, None].long().clamp_max(x.shape[-1] - 1)",
    ),
    (
        "sample",
        "top_p stops one early",
        "mass < top_p[:, None]).sum(-1, keepdim=True)",
        "mass < top_p[:, None]).sum(-1, keepdim=True).sub(1).clamp_min(0)",
    ),
    ("sample", "min_p is ignored", "min_p.to(x.dtype).log()[:, None]", "min_p.to(x.dtype).mul(0).log()[:, None]"),
    ("sample", "temperature multiplies", "/ torch.where(random", "* torch.where(random"),
    ("sample", "the second key is ignored", ">> 13)) + second)", ">> 13)))"),
    ("apply_penalties", "prompt tokens go free", "in_prompt | in_output, repetition", "in_output, repetition"),
    ("apply_penalties", "presence counts", "presence[:, None] * in_output", "presence[:, None] * output_counts"),
    ("gather_logprobs", "ties push down", "(logits > chosen)", "(logits >= chosen)"),
    ("gather_logprobs", "rank counts from 0", ".sum(-1) + 1", ".sum(-1)"),
    ("apply_token_bitmask", "allows what is forbidden", "masked_fill_(~allowed", "masked_fill_(allowed"),
    ("apply_token_bitmask", "bits from the other end", ">> bits", ">> (31 - bits)"),
]  # fmt: skip


def reference_module(op: str, old: str = "", new: str = "") -> types.ModuleType:
    """The reference's module made from its source text, with one piece of it replaced."""
    entry = registry.get(op, "reference")
    text = (KERNELS / entry.sources[0]).read_text()
    assert old in text, f"{entry.sources[0]} no longer holds {old!r}: the mutant needs an update"
    module = types.ModuleType(f"mutant_of_{op}")
    exec(compile(text.replace(old, new, 1) if old else text, f"<mutant of {op}>", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(("op", "wrong", "old", "new"), MUTANTS, ids=[f"{m[0]}: {m[1]}" for m in MUTANTS])
def test_a_mutated_implementation_is_caught(op: str, wrong: str, old: str, new: str) -> None:
    mutant = getattr(reference_module(op, old, new), op)
    assert check(op, mutant, size="tiny").failures, f"{wrong}, and the check sees nothing"


def test_every_operation_has_cases_and_a_mutant() -> None:
    assert set(GENERATORS) == set(registry.OPS) == {mutant[0] for mutant in MUTANTS}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", registry.OPS)
def test_the_reference_in_its_own_precision_passes(op: str, dtype: torch.dtype) -> None:
    report = check(op, "reference", size="tiny", dtype=dtype, seed=3)
    assert report.ok, report


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
    with_rows = [each.name for each in cases("silu_and_mul", seed=0) if each.args[0].numel() > 0]
    assert [each.name for each in report.failures] == with_rows
    assert not torch.are_deterministic_algorithms_enabled()
