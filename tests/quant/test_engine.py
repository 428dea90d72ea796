"""Quantised checkpoints through the engine: the tokens of plain torch on the matrices they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import ConfigError, EngineArgs
from engine.engine_core import EngineCore
from engine.models.hf_config import load_model_config
from engine.zoo.model import ShopModel
from tests.engine.harness import request, run, tokens
from tests.quant.models import CONFIG, tiny_folder

INT4 = {
    "rtn": {},
    "rtn, zero points": {"symmetric": False},
    "rtn, whole rows": {"group_size": -1},
    "gptq": {},
    "gptq, act-order": {"act_order": True},
    "gptq, zero points": {"symmetric": False},
    "awq": {},
    "rtn, 8 bits": {"bits": 8},
    "gptq, 8 bits": {"bits": 8, "act_order": True, "symmetric": False},
}
ALL = {**INT4, "int8": {}, "smoothquant": {}, "fp8": {}, "fp8, static": {"activations": "static"}}
PROMPTS = [[5, 9, 2, 40, 41], [7] * 20, [90, 3, 3, 8, 61, 62, 63, 64, 65]]


@contextmanager
def engine(folder: Path, **args: Any) -> Iterator[EngineCore]:
    settings = {"skip_tokenizer_init": True, "block_size": 4, "debug_checks": True, **args}
    core = EngineCore.from_args(EngineArgs.create(model=str(folder), **settings))
    try:
        yield core
    finally:
        core.shutdown()


def answers(core: EngineCore, prompts: list[list[int]] = PROMPTS, label: str = "") -> list[list[int]]:
    """Twelve greedy tokens for each prompt, all prompts at once."""
    requests = [request(f"{label}{index}", prompt, max_tokens=12) for index, prompt in enumerate(prompts)]
    return list(tokens(run(core, requests)).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", INT4)
def test_the_engine_says_what_plain_torch_says_with_the_restored_matrices(
    quantized: Callable[..., Any], name: str
) -> None:
    folder, meant, _ = quantized(name.split(",")[0], **INT4[name])
    model = ShopModel(CONFIG).eval()
    model.load_state_dict(meant)
    with engine(folder) as core:
        assert answers(core) == [model.generate(prompt, 12, eos=-1) for prompt in PROMPTS]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_alone_or_in_a_batch_a_request_gets_the_same_tokens_and_logprobs(
    quantized: Callable[..., Any], name: str
) -> None:
    folder, _, _ = quantized(name.split(",")[0], **ALL[name])
    prompts = [*PROMPTS, *([index, index + 1, 17] for index in range(14))]

    def ask(core: EngineCore, chosen: list[int], label: str) -> list[Any]:
        asked = [request(f"{label}{i}", prompts[i], max_tokens=8, logprobs=2) for i in chosen]
        outputs = run(core, asked)
        return [[(o.new_token_ids, o.logprobs) for o in outputs[f"{label}{i}"]] for i in chosen]

    with engine(folder, enable_prefix_caching=False) as core:
        together = ask(core, list(range(len(prompts))), "batch")
        for index in (0, 2, 9):
            assert ask(core, [index], f"alone{index}-") == [together[index]]


@pytest.mark.parametrize(
    "scheme, replays",
    [
        ("rtn", True),
        ("int8", True),
        ("int8_weight_only", False),
        ("fp8", False),
        ("llm_int8", False),
        ("mxfp4", True),
        ("nvfp4", True),
    ],
)
def test_a_float_checkpoint_is_rounded_while_it_is_loaded(
    float_folder: Path, scheme: str, replays: bool
) -> None:
    with engine(float_folder, quantization=scheme) as core:
        runner = core.executor.worker.runner
        on_cpu_kernels = runner.backend.name == "cpu"
        assert runner.replays == (replays and on_cpu_kernels)
        found = answers(core)
        assert answers(core, label="again") == found, "replayed steps"
    with engine(float_folder, quantization=scheme, enforce_eager=True) as core:
        assert answers(core) == found


def test_rounding_is_part_of_the_prefix_cache_s_identity(float_folder: Path) -> None:
    prints = {
        load_model_config(EngineArgs(model=str(float_folder), device="cpu", quantization=scheme)).fingerprint
        for scheme in (None, "rtn", "int8")
    }
    assert len(prints) == 3


def test_the_head_is_rounded_only_if_asked(float_folder: Path) -> None:
    def head_is_rounded(**options: Any) -> bool:
        config = {"quant_method": "online", "scheme": "rtn", **options}
        with engine(float_folder, hf_overrides={"quantization_config": config}) as core:
            answers(core)
            return bool(core.executor.worker.model.lm_head.matrices)

    assert not head_is_rounded()
    assert head_is_rounded(lm_head=True)


def edited(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of a quantised folder with changes to its quantization_config; None takes a key away."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    merged = {**config["quantization_config"], **changes}
    config["quantization_config"] = {key: value for key, value in merged.items() if value is not None}
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    "method, changes, message",
    [
        (
            "awq",
            {"quant_method": "quip"},
            "'quip' is not supported; supported are checkpoints of awq, gptq, fp8",
        ),
        ("awq", {"bits": 8}, r"\(awq\): bits = 8 is not supported; supported: 4"),
        ("awq", {"version": "gemv"}, "version = 'gemv' is not supported; supported: 'gemm'"),
        ("awq", {"group_size": 33}, "group_size = 33 is not supported"),
        ("awq", {"group_size": 96}, "128 input columns, which groups of 96 do not divide"),
        ("gptq", {"bits": 3}, r"\(gptq\): bits = 3 is not supported"),
        ("gptq", {"checkpoint_format": "marlin"}, "'marlin' is not supported; supported: 'gptq', 'gptq_v2'"),
        ("gptq", {"dynamic": {"+:.*": {"bits": 8}}}, "'dynamic' rules"),
        ("awq", {"modules_to_not_convert": ["q_proj"]}, "only some of its parts are quantised"),
        (
            "fp8",
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            "block_size",
        ),
        ("int8", {"format": "marlin-24"}, "'marlin-24' is not supported"),
        ("int8", {"config_groups": {}}, "has no config_groups"),
        ("int8", {"quantization_status": "frozen"}, "'frozen' is not supported"),
        (
            "int8",
            {
                "config_groups": {
                    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 2, "type": "int"}}
                }
            },
            "the scheme of group_0 is not supported .*num_bits 2.* supported: int4 and int8 weights",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    quantized: Callable[..., Any], tmp_path: Path, method: str, changes: dict[str, Any], message: str
) -> None:
    folder, _, _ = quantized(method)
    with pytest.raises(ConfigError, match=message), engine(edited(folder, tmp_path / "edited", **changes)):
        pass


def test_a_conflict_between_argument_and_checkpoint_is_refused(
    quantized: Callable[..., Any], float_folder: Path
) -> None:
    folder, _, _ = quantized("awq")
    with pytest.raises(ConfigError, match="quantization='int8', but the checkpoint .* quantised with 'awq'"):
        load_model_config(EngineArgs(model=str(folder), quantization="int8"))
    assert load_model_config(EngineArgs(model=str(folder), quantization="awq")).quantization is not None
    with pytest.raises(ConfigError, match="quantization='awq', but .* is not quantised.* prep zoo quantize"):
        load_model_config(EngineArgs(model=str(float_folder), quantization="awq"))
    with pytest.raises(
        ConfigError, match="quantization='nf4'.*on the fly: rtn, int8, int8_weight_only, fp8, llm_int8"
    ):
        load_model_config(EngineArgs(model=str(float_folder), quantization="nf4"))
    with pytest.raises(ConfigError, match="cannot make up weights in the format 'awq'"):
        load_model_config(EngineArgs(model=str(folder), load_format="dummy"))


def test_weights_that_do_not_fit_their_config_are_listed(
    quantized: Callable[..., Any], tmp_path: Path
) -> None:
    folder, _, _ = quantized("awq")
    with (
        pytest.raises(ConfigError, match=r"wrong shape: .*qzeros \[4, .*model \[2, "),
        engine(edited(folder, tmp_path / "group", group_size=64)),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="missing: .*g_idx"),
        engine(edited(folder, tmp_path / "gptq", quant_method="gptq", checkpoint_format="gptq")),
    ):
        pass


def test_biases_of_zeros_that_autogptq_adds_are_ignored_and_others_are_not(
    quantized: Callable[..., Any], tmp_path: Path
) -> None:
    folder, _, _ = quantized("gptq")
    copy = edited(folder, tmp_path / "biased")
    tensors = load_file(copy / "model.safetensors")
    bias = torch.zeros(CONFIG.hidden_size)
    save_file({**tensors, "model.layers.0.self_attn.o_proj.bias": bias}, copy / "model.safetensors")
    with engine(folder) as plain, engine(copy) as biased:
        assert answers(biased) == answers(plain)
    save_file({**tensors, "model.layers.0.self_attn.o_proj.bias": bias + 1}, copy / "model.safetensors")
    with pytest.raises(ConfigError, match="unexpected: model.layers.0.self_attn.o_proj.bias"), engine(copy):
        pass


def test_a_quantised_model_takes_the_memory_it_says(tmp_path: Path) -> None:
    from engine.quant.size import weight_bytes

    folder = tiny_folder(tmp_path / "float")
    bits = {}
    for scheme in (None, "int8", "rtn"):
        config = {"quant_method": "online", "scheme": scheme, "lm_head": True}
        overrides = {"quantization_config": config} if scheme else {}
        with engine(folder, hf_overrides=overrides) as core:
            num_bytes, num_weights = weight_bytes(core.executor.worker.model)
            bits[scheme] = 8 * num_bytes / num_weights
    assert bits["int8"] == pytest.approx(8 + 64 / 128, abs=0.15)
    assert bits["rtn"] == pytest.approx(4 + 24 / 128, abs=0.01)
    assert bits[None] > 15


@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_the_fp8_format_reads_the_same_matrices_as_compressed_tensors(
    quantized: Callable[..., Any], tmp_path: Path, scheme: str
) -> None:
    folder, _, _ = quantized("fp8", activations="static")
    changes = {"quant_method": "fp8", "activation_scheme": scheme, "config_groups": None, "format": None}
    copy = edited(folder, tmp_path / "fp8", **changes)
    if scheme == "dynamic":
        tensors = load_file(copy / "model.safetensors")
        kept = {name: tensor for name, tensor in tensors.items() if not name.endswith("input_scale")}
        save_file(kept, copy / "model.safetensors")
    with engine(folder) as ours, engine(copy) as theirs:
        same = answers(ours) == answers(theirs)
        assert same or scheme == "dynamic"
        layers = [core.executor.worker.model.model.layers["1"].mlp.gate_up_proj for core in (ours, theirs)]
        matrices = [layer.matrices[0] for layer in layers]
        assert torch.equal(matrices[0].qweight.float(), matrices[1].qweight.float())
        assert torch.equal(matrices[0].scale, matrices[1].scale)
        assert (matrices[1].input_scale is None) == (scheme == "dynamic")


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    config = {
        "architectures": ["MixtralForCausalLM"],
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="mixture of experts, whose experts cannot be quantised"):
        load_model_config(EngineArgs(model=str(tmp_path), load_format="dummy", quantization="rtn"))
