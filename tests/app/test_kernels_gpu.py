"""`prep kernels gpu` on a machine without a GPU: its plan, its refusal, its report of resources."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from typer.testing import CliRunner

from app.cli.kernels import kernels
from app.cli.kernels.gpu import LIMITS_S, Part, _checked, parts
from kernels import registry
from kernels.check.run import CaseResult, CheckReport
from kernels.cuda import compile as nvrtc


def test_the_plan_has_every_gpu_operation_once_and_attention_first() -> None:
    names = [part.name for part in parts()]
    with_gpu_form = {
        implementation.op
        for implementation in registry.IMPLEMENTATIONS
        if implementation.backend in ("triton", "cuda")
    }
    assert names[:2] == ["check paged_attention", "measure paged_attention"]
    assert {name for name in names if name.startswith("check")} == {f"check {op}" for op in with_gpu_form}
    assert len(names) == len(set(names)) == 2 * len(with_gpu_form) + 1


def test_the_plan_fits_into_twenty_minutes() -> None:
    assert 2 * LIMITS_S + sum(part.seconds for part in parts()) < 20 * 60


def test_a_short_run_says_what_it_would_leave_out() -> None:
    result = CliRunner().invoke(kernels, ["gpu", "--plan", "--minutes", "2"])
    assert result.exit_code == 0 and "left out" in result.stdout
    assert "left out" not in CliRunner().invoke(kernels, ["gpu", "--plan"]).stdout


def test_the_plan_goes_on_with_shorter_parts_after_one_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = {"first": 60.0, "too long": 600.0, "last": 20.0}
    made = [Part(name, seconds, lambda session, tell: None) for name, seconds in lengths.items()]
    monkeypatch.setattr(import_module("app.cli.kernels.gpu"), "parts", lambda: iter(made))
    shown = CliRunner().invoke(kernels, ["gpu", "--plan", "--minutes", "2"]).stdout.splitlines()
    ends = [line.split()[-2:] for line in shown if line.strip().startswith(tuple(lengths))]
    assert ends == [["1.3", "min"], ["left", "out"], ["1.7", "min"]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would run")
def test_without_a_gpu_it_says_so_and_names_the_command_that_needs_none() -> None:
    result = CliRunner().invoke(kernels, ["gpu"])
    assert result.exit_code != 0
    assert "torch sees no CUDA device" in str(result.exception or result.output)


def test_a_wrong_kernel_is_named_in_the_results() -> None:
    right = CheckReport("rms_norm", "triton", results=[CaseResult("3 x 64", "passed", share=0.5)])
    wrong = CheckReport("sample", "cuda", results=[CaseResult("5 rows", "failed", "off by one")])
    answer = _checked([right, wrong, CheckReport("embedding", "triton")])
    assert answer.rows == [
        ["rms_norm", "triton", "float32", "1", "0", "0.50"],
        ["sample", "cuda", "float32", "0", "1", "0.00"],
    ]
    assert answer.conclusion == "Wrong: sample (cuda, float32): 5 rows."


@pytest.mark.skipif(nvrtc.problem() is not None, reason=str(nvrtc.problem()))
@pytest.mark.slow
def test_compile_only_reports_the_resources_of_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tuple(
        implementation
        for implementation in registry.IMPLEMENTATIONS
        if implementation.op in ("rms_norm", "copy_blocks")
    )
    monkeypatch.setattr(registry, "IMPLEMENTATIONS", chosen)
    result = CliRunner().invoke(kernels, ["gpu", "--compile-only"])
    assert result.exit_code == 0, result.output
    for text in ("cuda/norm.cu", "triton_ops/copy.py", "sm_80", "sm_90", "kernels compiled"):
        assert text in result.stdout
