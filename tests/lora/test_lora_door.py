"""Requests and adapters that cannot be served are rejected before anything runs, with reason and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, LoRARequest, SamplingParams
from engine.config import ConfigError, EngineArgs
from engine.frontend.input_processor import InvalidRequestError
from engine.lora.adapter import Target, load_adapter
from engine.lora.request import LoRAError
from engine.resolve import resolve
from tests.lora.conftest import OpenLLM
from tests.lora.peft_files import ATTENTION, SHOP, matrices, random_tensors, write_adapter

TARGETS = {
    name: Target(columns, rows)
    for name, (rows, columns) in matrices((*ATTENTION, "gate_proj", "up_proj", "down_proj")).items()
}
ONE = SamplingParams(max_tokens=1)


def refused(folder: Path, max_rank: int = 16) -> str:
    with pytest.raises(LoRAError) as error:
        load_adapter(folder, TARGETS, max_rank, str(SHOP))
    return str(error.value)


@pytest.mark.parametrize(
    "config, says",
    [
        ({"r": 32, "lora_alpha": 8}, "rank 32, and max_lora_rank is 16"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias='all'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"peft_type": "IA3"}, "type IA3"),
        ({"r": 0}, "r must be a positive integer, got 0"),
        ({"lora_alpha": "much"}, "lora_alpha must be a positive number"),
        ({"target_modules": ["q_proj", "o_proj"]}, "holds nothing for it"),
        ({"r": 4}, "this model needs"),
    ],
)
def test_a_configuration_that_cannot_be_served(tmp_path: Path, config: dict[str, Any], says: str) -> None:
    assert says in refused(write_adapter(tmp_path / "a", targets=["q_proj"], **config))


def test_a_folder_that_is_no_adapter(tmp_path: Path) -> None:
    assert "no adapter_config.json" in refused(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    assert "cannot be read" in refused(tmp_path)
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]})
    )
    assert "no adapter_model.safetensors" in refused(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    assert "save it as safetensors" in refused(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"not safetensors")
    assert "cannot be read" in refused(tmp_path)


def test_the_adapter_of_another_base_says_whose_it_is(tmp_path: Path) -> None:
    tensors = random_tensors(1, 8, ["q_proj"])
    name = next(name for name in tensors if name.endswith("lora_B.weight"))
    tensors[name] = torch.zeros(4096, 8)
    folder = write_adapter(
        tmp_path / "a", targets=["q_proj"], tensors=tensors, base_model_name_or_path="meta-llama/Llama-2-7b"
    )
    message = refused(folder)
    assert "[4096, 8]" in message and "[256, 8]" in message and "made for 'meta-llama/Llama-2-7b'" in message


def test_tensors_that_do_not_belong(tmp_path: Path) -> None:
    tensors = random_tensors(1, 8, ["q_proj"])
    prefix = "base_model.model.model.layers.99.self_attn.q_proj"
    more = tensors | {
        f"{prefix}.lora_A.weight": torch.zeros(8, 256),
        f"{prefix}.lora_B.weight": torch.zeros(256, 8),
    }
    assert "layers.99" in refused(write_adapter(tmp_path / "layer", targets=["q_proj"], tensors=more))
    strange = tensors | {"base_model.model.lm_head.weight": torch.zeros(8, 8)}
    assert "not a lora_A or lora_B" in refused(
        write_adapter(tmp_path / "head", targets=["q_proj"], tensors=strange)
    )
    half = dict(tensors)
    del half[next(iter(half))]
    assert "only one of lora_A and lora_B" in refused(
        write_adapter(tmp_path / "half", targets=["q_proj"], tensors=half)
    )
    bad = dict(tensors)
    bad[next(iter(bad))] = torch.full_like(next(iter(bad.values())), float("nan"))
    assert "NaN" in refused(write_adapter(tmp_path / "nan", targets=["q_proj"], tensors=bad))
    assert "holds no tensors" in refused(write_adapter(tmp_path / "empty", targets=["q_proj"], tensors={}))


def test_rank_and_alpha_patterns_and_rslora_scale_as_peft_does(tmp_path: Path) -> None:
    tensors = random_tensors(1, 8, ["q_proj"]) | random_tensors(2, 4, ["v_proj"])
    folder = write_adapter(
        tmp_path / "a",
        targets=["q_proj", "v_proj"],
        tensors=tensors,
        rank=8,
        lora_alpha=16,
        rank_pattern={"v_proj": 4},
        alpha_pattern={r"layers\.0\..*v_proj": 2},
        use_rslora=True,
    )
    parts = load_adapter(folder, TARGETS, 16, str(SHOP)).parts

    def scale(name: str) -> float:
        stored = tensors[f"base_model.model.{name}.lora_B.weight"]
        return float((parts[name].b / stored).mean())

    assert scale("model.layers.0.self_attn.q_proj") == pytest.approx(16 / 8**0.5)
    assert scale("model.layers.0.self_attn.v_proj") == pytest.approx(2 / 4**0.5)
    assert scale("model.layers.1.self_attn.v_proj") == pytest.approx(16 / 4**0.5)


@pytest.mark.parametrize(
    "args, says",
    [
        ({"max_loras": 0}, "max_loras must be an integer of at least 1"),
        ({"max_lora_rank": 7}, "max_lora_rank must be one of 1, 8, 16"),
        ({"max_loras": 4, "max_cpu_loras": 2}, "max_cpu_loras=2 is less than max_loras=4"),
        ({"lora_dtype": "int8"}, "lora_dtype must be one of"),
        ({"tensor_parallel_size": 2}, "one worker per engine"),
    ],
)
def test_settings_that_cannot_work(args: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(EngineArgs(enable_lora=True, **args))


def test_requests_that_name_no_adapter_or_a_wrong_one(adapters: list[Path], open_llm: OpenLLM) -> None:
    llm = open_llm(enable_lora=True, max_lora_rank=8)
    one = LoRARequest("one", 1, str(adapters[0]))

    def says(**options: Any) -> str:
        with pytest.raises(InvalidRequestError) as error:
            llm.generate(["a", "b"], ONE, use_tqdm=False, **options)
        return str(error.value)

    assert "/nowhere is neither a shipped adapter" in says(lora_request=LoRARequest("x", 9, "/nowhere"))
    assert "rank 16, and max_lora_rank is 8" in says(lora_request=LoRARequest("two", 2, str(adapters[1])))
    assert "must be a LoRARequest" in says(lora_request="one")
    assert "2 prompts, but 1 lora_requests" in says(lora_request=[one])
    assert "2 prompts, but 1 priorities" in says(lora_request=one, priority=[1])
    assert llm.list_lora_adapters() == []
    llm.generate("a", ONE, lora_request=one, use_tqdm=False)
    assert "is loaded from" in says(lora_request=LoRARequest("one", 1, str(adapters[1])))
    assert "is that of adapter 'one'" in says(lora_request=LoRARequest("three", 1, str(adapters[2])))
    with pytest.raises(InvalidRequestError, match="there is no adapter 'two'; loaded are: one"):
        llm.unload_lora_adapter("two")
    with pytest.raises(InvalidRequestError, match="loaded already"):
        llm.load_lora_adapter("one", str(adapters[2]))
    assert llm.llm_engine.find_lora("one") == one
    with pytest.raises(InvalidRequestError, match="there is no adapter"):
        llm.llm_engine.find_lora("unknown")
    assert not llm.llm_engine.has_unfinished()


def test_without_enable_lora_an_adapter_is_refused_with_the_setting_that_is_missing(
    adapters: list[Path], open_llm: OpenLLM
) -> None:
    llm: LLM = open_llm()
    with pytest.raises(InvalidRequestError, match="enable_lora=True"):
        llm.generate("a", ONE, lora_request=LoRARequest("one", 1, str(adapters[0])))


@pytest.mark.parametrize("values", [("", 1, "p"), ("a", 0, "p"), ("a", True, "p"), ("a", 1, "")])
def test_a_lora_request_with_a_hole(values: tuple[str, int, str]) -> None:
    with pytest.raises(LoRAError):
        LoRARequest(*values)
