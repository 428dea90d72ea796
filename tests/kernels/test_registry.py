"""The fastest implementation that supports the input runs, unless another is requested by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import LLM
from kernels import ops, registry
from kernels.cpu import build

ROOT = Path(registry.__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """The choices of other tests come back afterwards."""
    forced = dict(registry._forced)
    yield
    registry._forced.clear()
    registry._forced.update(forced)
    registry._chosen.clear()
    registry._read_environment.cache_clear()  # a test may have had another PREP_KERNELS


def chosen(op: str, device_type: str, *args: object) -> str:
    """The module of the implementation that runs."""
    registry._chosen.clear()
    return registry.dispatch(op, (device_type,), *args).__module__


def normed(size: int = 64, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, float]:
    return torch.randn(3, size, dtype=dtype), torch.ones(size, dtype=dtype), 1e-6


def test_every_implementation_loads_or_says_what_is_missing() -> None:
    for implementation in registry.IMPLEMENTATIONS:
        if registry.unavailable(implementation.backend) is None:
            assert callable(implementation.load()), implementation


def test_the_reference_runs_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry, "unavailable", lambda backend: None if backend == "reference" else "not here"
    )
    assert chosen("rms_norm", "cpu", *normed()) == "kernels.reference.norm"
    assert registry.preferred("rms_norm", "cuda") == "reference"


def test_the_first_of_the_preferred_that_takes_the_input_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set()
    monkeypatch.setattr(registry, "unavailable", lambda backend: None)
    monkeypatch.setattr(
        registry.Implementation, "unsupported", lambda self, *args: None if self.backend in taken else "no"
    )
    monkeypatch.setattr(registry.Implementation, "load", lambda self: registry.get(self.op, self.backend))
    for backend, device in (("reference", "cpu"), ("cpu", "cpu"), ("cuda", "cuda"), ("triton", "cuda")):
        taken.add(backend)
        registry._chosen.clear()
        assert registry.dispatch("rms_norm", (device,)).backend == backend


def test_nothing_that_takes_the_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.Implementation, "unsupported", lambda self, *args: "too large")
    registry._chosen.clear()
    with pytest.raises(
        registry.UnsupportedInput, match="rms_norm: no implementation supports these inputs on cpu"
    ):
        registry.dispatch("rms_norm", ("cpu",), *normed())


def test_an_implementation_is_asked_once_for_a_kind_of_input(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        registry.Implementation, "unsupported", lambda self, *args: asked.append(self.backend)
    )
    registry._chosen.clear()
    for _ in range(3):
        registry.dispatch("rms_norm", ("cpu", torch.float32), *normed())
    assert len(asked) == 1


def test_a_backend_forced_by_name_runs() -> None:
    registry.force("rms_norm", "reference")
    assert chosen("rms_norm", "cpu", *normed()) == "kernels.reference.norm"
    registry.force("rms_norm", None)
    registry.force("*", "reference")
    assert chosen("rms_norm", "cpu", *normed()) == "kernels.reference.norm"
    assert registry.preferred("rms_norm", "cpu") == "reference"


def test_forcing_all_leaves_out_operations_that_do_not_have_the_backend() -> None:
    registry.force("*", "cuda")
    args = (torch.zeros(2, 40), torch.zeros(2, dtype=torch.int64))
    assert chosen("gather_logprobs", "cpu", *args) == "kernels.reference.logprobs"


def test_a_forced_backend_that_does_not_take_the_input_says_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(self: registry.Implementation, *args: object) -> str | None:
        return "rows of 64; supported: 32" if self.backend == "cpu" else None

    available = ("reference", "cpu")
    monkeypatch.setattr(registry, "unavailable", lambda name: None if name in available else "not here")
    monkeypatch.setattr(registry.Implementation, "unsupported", unsupported)
    registry.force("rms_norm", "cpu")
    message = r"rms_norm with cpu: rows of 64; supported: 32. These inputs are supported by: reference$"
    with pytest.raises(registry.UnsupportedInput, match=message):
        ops.rms_norm(*normed())


def test_a_forced_backend_that_cannot_run_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "unavailable", lambda name: "no compiler" if name == "cpu" else None)
    registry.force("rms_norm", "cpu")
    with pytest.raises(registry.UnsupportedInput, match="rms_norm with cpu: no compiler"):
        ops.rms_norm(*normed())


@pytest.mark.parametrize(
    ("op", "backend", "message"),
    [
        ("rmsnorm", "cpu", "unknown operation 'rmsnorm'; there are: .*rms_norm"),
        ("fp8_linear", "cpu", "fp8_linear has no implementation 'cpu'; implementations: reference, triton"),
        ("*", "metal", "unknown backend 'metal'; there are: reference, cpu, triton, cuda"),
    ],
)
def test_unknown_names_are_refused_with_those_that_exist(op: str, backend: str, message: str) -> None:
    with pytest.raises(registry.UnsupportedInput, match=message):
        registry.force(op, backend)


@pytest.mark.parametrize("value", ["rms_norm=reference, silu_and_mul=reference", "reference"])
def test_prep_kernels_chooses_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_again(monkeypatch, value)
    assert chosen("rms_norm", "cpu", *normed()) == "kernels.reference.norm"
    assert registry.preferred("silu_and_mul", "cpu") == "reference"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("metal", "PREP_KERNELS=metal: unknown backend 'metal'; there are: reference, cpu, triton, cuda"),
        ("rmsnorm=cpu", "PREP_KERNELS=rmsnorm=cpu: unknown operation 'rmsnorm'"),
        ("sample=cpu,rms_norm=metal", "PREP_KERNELS=rms_norm=metal: rms_norm has no implementation 'metal'"),
    ],
)
def test_a_wrong_prep_kernels_is_told_by_name(
    value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_again(monkeypatch, value)
    with pytest.raises(registry.UnsupportedInput, match=message):
        registry.preferred("rms_norm", "cpu")
    assert not registry._forced, "none of it is taken"


def test_a_wrong_prep_kernels_is_refused_before_the_compiler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    read_again(monkeypatch, "rmsnorm=cpu")
    monkeypatch.setattr(build, "load_library", lambda: pytest.fail("it would compile"))
    registry.unavailable.cache_clear()
    with pytest.raises(registry.UnsupportedInput, match="unknown operation 'rmsnorm'"):
        registry.unavailable("cpu")


@pytest.mark.parametrize("value", ["sample=cpu", "cpu"])
def test_an_engine_does_not_start_with_a_form_that_cannot_run(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_again(monkeypatch, value)
    registry.check_requested()
    monkeypatch.setattr(registry, "unavailable", lambda name: "no compiler" if name == "cpu" else None)
    with pytest.raises(registry.UnsupportedInput, match=f"PREP_KERNELS={value} cannot run here: no compiler"):
        LLM("shop", max_model_len=64, num_gpu_blocks_override=8)


def read_again(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """The variable is read once in a process: here once more, and as it was when the test is over."""
    monkeypatch.setenv("PREP_KERNELS", value)
    registry._forced.clear()
    registry._read_environment.cache_clear()
