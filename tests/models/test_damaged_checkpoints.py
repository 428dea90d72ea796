"""A damaged checkpoint or adapter either works or ends in ConfigError or LoRAError, which names file or folder."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import LLM, LoRARequest, SamplingParams
from engine.config import ConfigError
from engine.frontend.input_processor import InvalidRequestError
from tests.frontend.conftest import CONFIG, byte_level_json
from tests.frontend.test_bad_inputs import is_clear
from tests.lora.peft_files import random_tensors, write_adapter
from tests.models.checkpoints import write_checkpoint
from tests.models.damage import damages

TWO = SamplingParams(max_tokens=2, temperature=0)
CHAT = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in two shards, with every file that checkpoints have."""
    folder = tmp_path_factory.mktemp("intact")
    scaling = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    write_checkpoint(
        folder,
        num_shards=2,
        vocab_size=328,
        model_type="llama",
        eos_token_id=[1],
        rope_scaling={**scaling, "original_max_position_embeddings": 32},
        hidden_act="silu",
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    for name, content in (
        ("tokenizer.json", byte_level_json()),
        ("tokenizer_config.json", json.dumps(CONFIG)),
        ("special_tokens_map.json", '{"bos_token": "<s>"}'),
        ("generation_config.json", '{"eos_token_id": [1]}'),
    ):
        (folder / name).write_text(content)
    return folder


@pytest.fixture(scope="module")
def quantized(intact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a quantization_config for each format, of which only the reading is tested."""
    folder = tmp_path_factory.mktemp("quantized") / "model"
    shutil.copytree(intact, folder)
    weights = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 8, "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    formats = {
        "awq": {
            "bits": 4,
            "group_size": 8,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": [],
        },
        "gptq": {"bits": 4, "group_size": 8, "desc_act": False, "dynamic": {"-:.*down.*": {}}, "sym": True},
        "fp8": {"activation_scheme": "static", "ignored_layers": ["lm_head"], "fmt": "e4m3"},
        "compressed-tensors": {"format": "pack-quantized", "config_groups": groups, "ignore": ["lm_head"]},
        "online": {"scheme": "rtn", "group_size": 8},
    }
    config = json.loads((folder / "config.json").read_text())
    for name, rules in formats.items():
        content = {**config, "quantization_config": {"quant_method": name, **rules}}
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def try_to_run(folder: Path) -> None:
    """Load, generate and chat; raise AssertionError for an error that is not clear."""
    llm = None
    try:
        llm = LLM(str(folder), device="cpu", num_gpu_blocks_override=16, block_size=4, max_num_seqs=4)
    except Exception as error:
        assert isinstance(error, ConfigError) and is_clear(error), f"{type(error).__name__}: {error}"
        assert str(folder) in str(error), str(error)
        raise
    try:
        llm.generate("hello", TWO, use_tqdm=False)
        llm.chat(CHAT, TWO, use_tqdm=False)
    except Exception as error:  # an odd tokenizer or chat template may refuse the request
        assert is_clear(error), f"{type(error).__name__}: {error}"
        llm.generate([5, 6], TWO, use_tqdm=False)
    finally:
        llm.shutdown()


def outcomes(intact: Path, names: list[str], scratch: Path, step: int) -> Iterator[tuple[str, str]]:
    """Try every `step`-th damage of these files; yield what was done, and "works", "refused" or the fault."""
    number = 0
    for name in names:
        for what, do in damages(intact / name):
            number += 1
            if number % step:
                continue
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(intact, scratch)
            do(scratch / name)
            try:
                try_to_run(scratch)
                yield f"{name}: {what}", "works"
            except ConfigError:
                yield f"{name}: {what}", "refused"
            except AssertionError as error:
                yield f"{name}: {what}", str(error)[:300]


def check(found: list[tuple[str, str]]) -> None:
    wrong = [f"{what}: {outcome}" for what, outcome in found if outcome not in ("works", "refused")]
    assert not wrong, "\n".join(wrong)
    assert Counter(outcome for _, outcome in found)["refused"] > len(found) / 4


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_damaged_checkpoint_works_or_is_refused_by_name(intact: Path, tmp_path: Path, step: int) -> None:
    names = sorted(file.name for file in intact.iterdir())
    check(list(outcomes(intact, names, tmp_path / "damaged", step)))


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_damaged_quantization_config_is_refused_by_name(quantized: Path, tmp_path: Path, step: int) -> None:
    """The weights are floats, so that nothing loads but what the damage has made a float checkpoint again."""
    found = []
    folder = tmp_path / "damaged"
    for format_file in sorted(quantized.glob("[!tgsm]*.json")) + sorted(quantized.glob("gptq.json")):
        if format_file.name == "config.json":
            continue
        for number, (what, do) in enumerate(damages(format_file)):
            if number % step or "quantization_config" not in what:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(quantized, folder)
            (folder / "config.json").write_bytes(format_file.read_bytes())
            do(folder / "config.json")
            try:
                try_to_run(folder)
                found.append((f"{format_file.name}: {what}", "works"))
            except ConfigError:
                found.append((f"{format_file.name}: {what}", "refused"))
            except AssertionError as error:
                found.append((f"{format_file.name}: {what}", str(error)[:300]))
    check(found)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_damaged_adapter_works_or_is_refused_and_the_engine_goes_on(tmp_path: Path, step: int) -> None:
    targets = ["q_proj"]
    adapter = write_adapter(
        tmp_path / "adapter", targets=targets, tensors=random_tensors(1, 8, targets), rank_pattern={"q_proj": 8},
        alpha_pattern={"q_proj": 4}, exclude_modules=["k_proj"], layers_to_transform=[0, 1, 2, 3, 4, 5],
        init_lora_weights=True, use_rslora=False,
    )  # fmt: skip
    found, number, folder = [], 0, tmp_path / "damaged"
    with LLM("shop", device="cpu", num_gpu_blocks_override=16, max_num_seqs=4, enable_lora=True) as llm:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            for what, do in damages(adapter / name):
                number += 1
                if number % step:
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(adapter, folder)
                do(folder / name)
                outcome = "works"
                try:
                    lora = LoRARequest("a", 1, str(folder), load_inplace=True)
                    llm.generate([5, 6], TWO, lora_request=lora, use_tqdm=False)
                except InvalidRequestError as error:
                    outcome = "refused" if str(folder) in str(error) else str(error)
                except Exception as error:
                    outcome = f"{type(error).__name__}: {error}"
                found.append((f"{name}: {what}", outcome))
        assert llm.generate([5, 6], TWO, use_tqdm=False)[0].finished
    check(found)


def test_a_number_of_layers_beyond_the_weights_is_refused_before_anything_is_built(intact: Path) -> None:
    for layers in (3, 10**9):
        with pytest.raises(ConfigError, match=r"num_hidden_layers.* (2 layers|at most 1,024)"):
            LLM(str(intact), device="cpu", hf_overrides={"num_hidden_layers": layers})
    for name in ("hidden_size", "vocab_size", "max_position_embeddings", "intermediate_size"):
        for load_format in ("auto", "dummy"):
            with pytest.raises(ConfigError, match=f"{name}|intermediate_size|do not fit"):
                LLM(str(intact), device="cpu", load_format=load_format, hf_overrides={name: 2**30})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eos_token_id": "a"}, "'eos_token_id' is 'a', expected the id of a token, or a list of ids"),
        ({"sliding_window": 1.5}, "'sliding_window' is 1.5, expected a positive integer"),
        ({"tie_word_embeddings": "false"}, "'tie_word_embeddings' is 'false', expected true or false"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan, expected a positive number"),
        ({"rope_theta": "x"}, "rope_theta is 'x', expected a number above 1"),
        ({"model_type": "gemma"}, "model_type 'gemma' is not that of LlamaForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "'architectures' is 'LlamaForCausalLM', expected a list"),
    ],
)
def test_a_mistyped_field_is_named_with_file_value_and_what_it_must_be(
    intact: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"config.json: {message}"):
        LLM(str(intact), device="cpu", hf_overrides=changes)
