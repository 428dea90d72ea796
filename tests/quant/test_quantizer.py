"""Our quantiser: better methods are better, nothing is half written, and the files are as large as predicted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config import ConfigError
from engine.quant.matrices import llm_int8_linear
from engine.quant.quantizer.calibration import InputStatistics, calibration_texts, watched_inputs
from engine.quant.quantizer.encode import stored_dtype
from engine.quant.quantizer.folding import fold_groups, inject_outliers, watched
from engine.quant.quantizer.methods import gptq_round, smoothing_scale
from engine.quant.quantizer.recipe import BITS, METHODS, Recipe
from engine.quant.quantizer.run import Report, load_float_model, quantize, write_checkpoint
from engine.quant.rounding import round_to_nearest
from engine.quant.size import estimate_size
from kernels import ops
from kernels.reference.int8 import quantise_int8
from tests.quant.models import samples, tiny_folder, tiny_model


def statistics_of(x: Tensor) -> InputStatistics:
    inputs = InputStatistics.zeros(x.shape[-1])
    inputs.add(x)
    return inputs


def hidden_states(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model.hidden(ids)[0])


@pytest.mark.parametrize("group", [32, 128])
def test_gptq_and_awq_are_nearer_than_rounding_to_nearest(quantized: Callable[..., Any], group: int) -> None:
    error = {
        name: quantized(name.split(",")[0], group_size=group, **options)[2].error
        for name, options in {
            "rtn": {},
            "rtn, zero points": {"symmetric": False},
            "gptq": {},
            "gptq, act-order": {"act_order": True},
            "awq": {},
        }.items()
    }
    assert error["gptq"] < 0.8 * error["rtn"]
    assert error["gptq, act-order"] < 0.8 * error["rtn"]
    assert error["awq"] < error["rtn, zero points"] < error["rtn"]


def test_smaller_groups_are_more_exact() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    errors = [
        (round_to_nearest(weight, group, symmetric=False).restore() - weight).norm()
        for group in (32, 64, 128, 256)
    ]
    assert errors == sorted(errors)


def test_squared_error_is_that_of_the_outputs() -> None:
    x, difference = torch.randn(40, 16), torch.randn(8, 16)
    expected = (x @ difference.T).square().sum().item()
    assert statistics_of(x).squared_error(difference) == pytest.approx(expected, rel=1e-5)


def test_gptq_with_uncorrelated_inputs_rounds_to_nearest() -> None:
    """If the gram matrix is diagonal, no column can compensate for another."""
    weight = torch.randn(12, 64)
    found = gptq_round(weight, torch.eye(64) * 3, 32)
    expected = round_to_nearest(weight, 32, symmetric=True)
    assert torch.equal(found.steps, expected.steps) and torch.equal(found.scale, expected.scale)


def test_gptq_stands_inputs_that_are_never_there() -> None:
    x = torch.randn(50, 64)
    x[:, 10:20] = 0
    rounded = gptq_round(torch.randn(8, 64), statistics_of(x).gram, 32, act_order=True)
    assert rounded.restore().isfinite().all()


def test_folding_and_outliers_do_not_change_the_function() -> None:
    plain, folded, outlying = tiny_model(), tiny_model(), tiny_model()
    inject_outliers(outlying, factor=64.0)
    generator = torch.Generator().manual_seed(3)
    for layer in folded.model.layers:
        for group in fold_groups(layer):
            scale = torch.rand(group.linears[0].in_features, generator=generator) + 0.5
            group.fold(scale, torch.bfloat16)
    ids = samples(1)[0]
    expected = hidden_states(plain, ids)
    torch.testing.assert_close(hidden_states(folded, ids), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(hidden_states(outlying, ids), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad(), watched_inputs(watched(outlying.model.layers[0])) as inputs:
        outlying.hidden(ids)
    largest = inputs["self_attn.q_proj"].abs_max
    assert largest.max() > 20 * largest.median()


def test_outliers_break_int8_and_splitting_or_smoothing_mends_it() -> None:
    """E31: error of one matrix's outputs, with the weights in int8 throughout."""
    model = tiny_model()
    inject_outliers(model)
    layer = model.model.layers[0]
    seen: list[Tensor] = []
    hook = layer.self_attn.q_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    with torch.no_grad():
        model.hidden(samples(1)[0])
    hook.remove()
    x, weight = seen[0], layer.self_attn.q_proj.weight
    expected = x @ weight.T

    def off(y: Tensor) -> float:
        return float((y - expected).norm() / expected.norm())

    qweight, scale = quantise_int8(weight)
    per_tensor = (x / (step := x.abs().max() / 127)).round() * step
    smoothing = smoothing_scale([weight], x.abs().amax(0), 0.5)
    errors = {
        "weights only": off(x @ (qweight * scale[:, None]).T),
        "LLM.int8": off(llm_int8_linear(x, qweight, scale, weight=weight)),
        "LLM.int8, restored columns": off(llm_int8_linear(x, qweight, scale)),
        "SmoothQuant": off(ops.int8_linear(x / smoothing, *quantise_int8(weight * smoothing))),
        "int8 by token": off(ops.int8_linear(x, qweight, scale)),
        "int8 by tensor": off(per_tensor @ (qweight * scale[:, None]).T),
    }
    assert errors["weights only"] < errors["int8 by token"] < errors["int8 by tensor"], errors
    assert errors["LLM.int8"] < errors["int8 by token"] / 3, errors
    assert errors["SmoothQuant"] < errors["int8 by token"] / 3, errors


@pytest.mark.parametrize("method, bits", [(m, b) for m in METHODS for b in BITS[m]])
def test_the_size_follows_from_the_shapes_within_two_percent(
    quantized: Callable[..., Any], float_folder: Path, method: str, bits: int
) -> None:
    folder, _, report = quantized(method, bits=bits)
    shapes = {name: tuple(t.shape) for name, t in load_file(float_folder / "model.safetensors").items()}
    size = estimate_size(shapes, method, bits=bits, group_size=32)
    tensors = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert size.total_bytes == pytest.approx(tensors, rel=0.02)
    assert size.bits_per_matrix_weight == pytest.approx(report.bits_per_weight, rel=0.02)


def test_effective_bits_of_llama_8b_count_its_embeddings() -> None:
    """4.16 bits in the matrices, 5.7 over the whole file: a vocabulary of 128,256 stays 16 bits wide."""
    layer = {
        "q_proj.weight": (4096, 4096),
        "k_proj.weight": (1024, 4096),
        "v_proj.weight": (1024, 4096),
        "o_proj.weight": (4096, 4096),
        "gate_proj.weight": (14336, 4096),
        "up_proj.weight": (14336, 4096),
        "down_proj.weight": (4096, 14336),
    }
    shapes = {f"model.layers.{index}.{name}": shape for index in range(32) for name, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (128256, 4096), "lm_head.weight": (128256, 4096)}
    size = estimate_size(shapes, "awq")
    assert size.num_weights == pytest.approx(8.03e9, rel=1e-3)
    assert size.bits_per_matrix_weight == 4.15625
    assert size.total_bytes == pytest.approx(5.73e9, rel=0.01)
    assert estimate_size(shapes, "none").bits_per_weight == 16


@pytest.mark.parametrize(
    "options, message",
    [
        ({"method": "nf4"}, "no quantisation method 'nf4'; there are rtn, gptq"),
        ({"method": "awq", "bits": 8}, "awq has 4 bits, not 8; methods with 8 bits: rtn, gptq, int8"),
        ({"method": "rtn", "bits": 3}, "rtn has 4 or 8 bits, not 3$"),
        ({"method": "rtn", "group_size": 12}, "multiple of 8"),
        ({"method": "rtn", "act_order": True}, "act-order belongs to gptq"),
        ({"method": "int8", "activations": "static"}, "belong to fp8"),
        ({"method": "awq", "symmetric": True}, "zero points"),
        ({"method": "smoothquant", "alpha": 2.0}, "alpha must be from 0 to 1"),
    ],
)
def test_recipes_that_do_not_exist_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.create(**options)


def test_groups_that_do_not_divide_a_row_are_refused_before_anything_is_computed(float_folder: Path) -> None:
    model, original = load_float_model(float_folder)
    recipe = Recipe.create("rtn", group_size=96)
    with pytest.raises(ConfigError, match="128 input columns, which groups of 96 do not divide"):
        quantize(
            model, recipe, samples(), original, Report("tiny", recipe), tell=lambda text: pytest.fail(text)
        )


def test_a_model_of_another_layout_is_refused(tmp_path: Path, quantized: Callable[..., Any]) -> None:
    folder = tiny_folder(tmp_path / "untied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(ConfigError, match="tie_word_embeddings = False.*quantization='rtn'"):
        load_float_model(folder)
    with pytest.raises(ConfigError, match="quantization_config"):
        load_float_model(quantized("rtn")[0])


def test_an_interrupted_write_leaves_nothing_behind(
    float_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.quant.quantizer.run.save_file", interrupt)
    recipe = Recipe.create("int8")
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(float_folder, tmp_path / "out", {}, recipe, torch.bfloat16, None)
    assert list(tmp_path.iterdir()) == []


def test_awq_and_gptq_models_are_fp16_as_their_scales() -> None:
    assert stored_dtype(Recipe.create("awq"), torch.bfloat16) == torch.float16
    assert stored_dtype(Recipe.create("int8"), torch.bfloat16) == torch.bfloat16


def test_calibration_texts_come_from_lines_and_from_json(tmp_path: Path) -> None:
    lines = tmp_path / "a.txt"
    lines.write_text("one\n\ntwo\nthree\n")
    assert calibration_texts(lines, 2) == ["one", "two"]
    objects = tmp_path / "a.jsonl"
    objects.write_text('{"text": "one"}\n{"messages": [{"role": "user", "content": "Hi"}]}\n')
    assert calibration_texts(objects, 9)[0] == "one" and "user\nHi" in calibration_texts(objects, 9)[1]
    objects.write_text('{"prompt": "one"}\n')
    with pytest.raises(ConfigError, match="a.jsonl, line 1 is not a JSON object with 'text' or 'messages'"):
        calibration_texts(objects, 9)
    with pytest.raises(ConfigError, match="cannot read .*none.txt"):
        calibration_texts(tmp_path / "none.txt", 9)
    lines.write_text("\n")
    with pytest.raises(ConfigError, match="holds no text"):
        calibration_texts(lines, 9)
    assert len(calibration_texts("in-domain", 3)) == 3
