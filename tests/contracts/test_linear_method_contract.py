"""Contract of a LinearMethod, for any storage: ours for float checkpoints, or yours.

pytest tests/contracts -k linear_method --impl lessons.my_int3:MyInt3

Yours is made without arguments and gets the layer's float weights from the loader; it may store them in any form.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.layers.linear import Linear
from engine.quant.matrices import OnlineMethod
from engine.quant.online import ROUND, EmulatedFP4, round_to_grid

ROWS, COLUMNS = 48, 128
WORST_ERROR = 0.25
"""Relative to the float product, on normal numbers: what 3 bits in groups can keep."""
OURS = {
    "int4": lambda: OnlineMethod(lambda weight: round_to_grid(weight, 32)),
    "int8": lambda: OnlineMethod(ROUND["int8"]),
    "int8 weight-only": lambda: OnlineMethod(ROUND["int8_weight_only"]),
    "fp8": lambda: OnlineMethod(ROUND["fp8"]),
    "llm_int8": lambda: OnlineMethod(ROUND["llm_int8"]),
    "mxfp4": lambda: EmulatedFP4("mxfp4"),
    "nvfp4": lambda: EmulatedFP4("nvfp4"),
}


@pytest.fixture(params=list(OURS))
def method(request: pytest.FixtureRequest, impl: str | None) -> Any:
    if impl is None:
        return OURS[request.param]()
    if request.param != next(iter(OURS)):
        pytest.skip("one implementation is judged once")
    module, _, name = impl.partition(":")
    theirs = getattr(import_module(module), name)
    needed = ("create_weights", "process_weights_after_loading", "apply", "is_recordable")
    if missing := [each for each in needed if not hasattr(theirs, each)]:
        pytest.skip(f"{impl} is no LinearMethod: it has no {', '.join(missing)}")
    return theirs()


def loaded(layer: Linear, method: Any, weight: Tensor, bias: Tensor | None = None) -> Linear:
    """A layer that went through its whole life: storage, loading by name, repacking."""
    layer.method = method
    layer.create_weights()
    rows = dict(zip(layer.part_names("attn.layer"), weight.split(list(layer.parts.values())), strict=True))
    for name, storage in layer.checkpoint_tensors("attn.layer"):
        part, _, kind = name.rpartition(".")
        if kind == "weight":
            storage.copy_(rows[part])
    if bias is not None:
        layer.bias.data.copy_(bias)
    layer.finish_loading()
    return layer


def plain(method: Any, weight: Tensor, bias: Tensor | None = None) -> Linear:
    layer = Linear(COLUMNS, ROWS, bias=bias is not None, dtype=torch.float32)
    return loaded(layer, method, weight, bias)


def test_a_linear_method_is_near_the_float_product(method: Any) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(ROWS, COLUMNS), torch.randn(ROWS), torch.randn(9, COLUMNS)
    expected = x @ weight.T + bias
    y = plain(method, weight, bias)(x)
    assert y.shape == expected.shape and y.dtype == x.dtype
    assert (y - expected).norm() < WORST_ERROR * expected.norm()


def test_a_linear_method_gives_a_row_the_same_bits_alone_and_in_a_batch(method: Any) -> None:
    layer = plain(method, torch.randn(ROWS, COLUMNS))
    x = torch.randn(33, COLUMNS)
    together = layer(x)
    for row in (0, 7, 32):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


def test_a_linear_method_keeps_the_parts_of_a_merged_layer_in_order(method: Any) -> None:
    weight = torch.randn(ROWS, COLUMNS)
    weight[ROWS // 2 :] *= 100
    layer = Linear(COLUMNS, {"a": ROWS // 2, "b": ROWS // 2}, bias=False, dtype=torch.float32)
    y = loaded(layer, method, weight)(torch.randn(4, COLUMNS))
    assert (y[:, ROWS // 2 :].abs().mean() / y[:, : ROWS // 2].abs().mean()) > 20


def test_a_linear_method_takes_no_rows_and_leaves_its_input_alone(method: Any) -> None:
    layer = plain(method, torch.randn(ROWS, COLUMNS))
    assert layer(torch.empty(0, COLUMNS)).shape == (0, ROWS)
    x = torch.randn(3, COLUMNS)
    before = x.clone()
    layer(x)
    assert torch.equal(x, before)


def test_a_linear_method_maps_zeros_to_zeros_and_says_whether_it_can_be_recorded(method: Any) -> None:
    weight = torch.randn(ROWS, COLUMNS)
    weight[5] = 0
    layer = plain(method, weight)
    assert not layer(torch.zeros(2, COLUMNS)).any()
    assert not layer(torch.randn(2, COLUMNS))[:, 5].any()
    for is_cuda in (True, False):
        assert layer.method.is_recordable(layer, is_cuda=is_cuda) in (True, False)
