"""Every field of adapter_config.json: with any value the adapter means what it means to PEFT, or it is refused."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.lora.adapter import Target, load_adapter
from engine.lora.adapter_config import HARMLESS, NEUTRAL, PLAIN_INITS, READ, read_adapter_config
from engine.lora.request import LoRAError
from tests.lora.peft_files import write_adapter

peft = pytest.importorskip("peft")
TARGETS = ("q_proj", "v_proj", "down_proj")
RANK = 4
TOKENS = torch.arange(3, 33)[None]
CHANGES_THE_BASE = ("pissa", "pissa_niter_2", "olora", "corda", "loftq", "lora_ga", "PiSSA", "new_method")


def new_base() -> nn.Module:
    """A random tiny Llama, always the same."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.2,
        )
    ).eval()  # fmt: skip


@cache
def matrices() -> dict[str, Target]:
    linears = ((name, each) for name, each in new_base().named_modules() if isinstance(each, nn.Linear))
    return {name: Target(each.in_features, each.out_features) for name, each in linears if name != "lm_head"}


def random_halves(rank: int = RANK, targets: tuple[str, ...] = TARGETS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    halves = {}
    for name, target in matrices().items():
        if name.split(".")[-1] in targets:
            prefix = f"base_model.model.{name}"
            halves[f"{prefix}.lora_A.weight"] = (
                torch.randn(rank, target.in_features, generator=generator) * 0.2
            )
            halves[f"{prefix}.lora_B.weight"] = (
                torch.randn(target.out_features, rank, generator=generator) * 0.2
            )
    return halves


def write(folder: Path, **config: Any) -> Path:
    config = {"task_type": "CAUSAL_LM", **config}
    return write_adapter(folder, rank=RANK, targets=TARGETS, tensors=random_halves(), **config)


@torch.no_grad()
def logits_of_peft(folder: Path) -> Tensor | None:
    """None if PEFT cannot load the adapter."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return peft.PeftModel.from_pretrained(new_base(), str(folder)).eval()(TOKENS).logits
    except Exception:  # of any kind: PEFT has no error of its own for this
        return None


@torch.no_grad()
def our_logits(folder: Path) -> Tensor:
    """The base with W + s B A in place of W, from what the engine reads."""
    model = new_base()
    for name, part in load_adapter(folder, matrices(), 512).parts.items():
        model.get_submodule(name).weight += part.b @ part.a
    return model(TOKENS).logits


def verdict(folder: Path) -> str:
    expected = logits_of_peft(folder)
    try:
        found = our_logits(folder)
    except LoRAError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if expected is None:
        return "theirs refuse"
    difference = (found - expected).abs().max().item()
    return "equal" if difference < 1e-3 else f"logits differ by {difference:.2g}"


def test_every_field_of_pefts_class_is_in_the_table() -> None:
    names = {field.name for field in fields(peft.LoraConfig)}
    assert not names - {*READ, *HARMLESS, *NEUTRAL}
    assert not {*READ} & {*HARMLESS, *NEUTRAL} and not HARMLESS & NEUTRAL.keys()


def test_the_defaults_of_pefts_class_are_served(tmp_path: Path) -> None:
    config = peft.LoraConfig(r=RANK, target_modules=list(TARGETS)).to_dict()
    config["target_modules"] = list(TARGETS)
    write(tmp_path / "a")
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config, default=str))
    assert verdict(tmp_path / "a") == "equal"


@pytest.mark.parametrize("init", [*PLAIN_INITS, "Gaussian"])
def test_an_adapter_that_leaves_the_base_alone_means_what_it_means_to_peft(tmp_path: Path, init: Any) -> None:
    assert verdict(write(tmp_path / "a", init_lora_weights=init)) in ("equal", "theirs refuse")


@pytest.mark.parametrize("init", CHANGES_THE_BASE)
def test_an_adapter_that_changes_the_base_is_refused(tmp_path: Path, init: str) -> None:
    with pytest.raises(
        LoRAError, match=f"init_lora_weights='{init}'.*path_initial_model_for_weight_conversion"
    ):
        our_logits(write(tmp_path / "a", init_lora_weights=init))


def test_pissa_as_peft_saves_it_would_be_wrong_on_the_plain_base(tmp_path: Path) -> None:
    """It is refused because the logits of PEFT are others than those of the base with these matrices added."""
    model = peft.get_peft_model(
        new_base(), peft.LoraConfig(r=RANK, init_lora_weights="pissa", target_modules=list(TARGETS))
    )
    model.save_pretrained(str(tmp_path))
    assert verdict(tmp_path) == "refused"
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    expected = logits_of_peft(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "init_lora_weights": True}))
    assert (our_logits(tmp_path) - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"target_modules": ["q_proj"]}, "refused"),  # PEFT ignores the other weights
        ({"target_modules": r".*\.(q_proj|v_proj|down_proj)"}, "equal"),
        ({"target_modules": r".*\.(q_proj|v_proj)"}, "refused"),
        ({"target_modules": list(matrices())}, "refused"),
        ({"target_modules": None}, "refused"),  # PEFT takes q_proj and v_proj
        ({"layers_to_transform": False}, "refused"),  # layer 0 for PEFT
        ({"kasa_config": {}}, "refused"),
        ({"exclude_modules": ["k_proj"]}, "equal"),
        ({"exclude_modules": ["v_proj"]}, "refused"),
        ({"layers_to_transform": [0, 1]}, "equal"),
        ({"layers_to_transform": 0}, "refused"),
        ({"alpha_pattern": {"v_proj": 64, r"layers\.1\..*q_proj": 1}}, "equal"),
        ({"alpha_pattern": {"v_proj": -3.5}}, "equal"),
        ({"use_rslora": True}, "equal"),
        ({"lora_alpha": 2.5}, "equal"),
        ({"rank_pattern": {"v_proj": 3}}, "refused"),
        ({"use_brandnew": True}, "refused"),
        ({"use_brandnew": False, "brandnew_config": None, "brandnew_size": 16}, "equal"),
    ],
    ids=str,
)
def test_a_field_is_read_by_pefts_rule_or_refused(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    assert verdict(write(tmp_path / "a", **changes)) == expected


BAD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**400, float("nan"), float("inf"), "", "x", "(", [], [1], ["("], [None], {}, {"(": 4},
    {"q_proj": None}, {"q_proj": "a"}, {"q_proj": 0}, {"q_proj": [8]},
)  # fmt: skip


def test_no_value_of_any_field_ends_in_anything_but_lora_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text())
    refused = 0
    for name in sorted({*READ, *HARMLESS, *NEUTRAL}):
        for value in BAD:
            file.write_text(json.dumps({**config, name: value}))
            try:
                found = read_adapter_config(folder, 512)
                for matrix in matrices():
                    found.names(matrix), found.scaling_of(matrix)
            except LoRAError as error:
                refused += 1
                assert str(folder) in str(error)
    assert refused > 200


@pytest.mark.slow
def test_every_value_of_every_field_means_what_it_means_to_peft_or_is_refused(tmp_path: Path) -> None:
    values: tuple[Any, ...] = (
        *BAD, False, 1, 2, 8, 0.5, "all", "none", "lora_only", "q_proj", "all-linear", ["q_proj"], [0], [0, 1],
        ["layers"], {"q_proj": 2}, {"v_proj": 4},
    )  # fmt: skip
    wrong, count = [], {"equal": 0, "refused": 0, "theirs refuse": 0}
    for name in (field.name for field in fields(peft.LoraConfig)):
        for value in values:
            found = verdict(write(tmp_path / "a", **{name: value}))
            if found in count:
                count[found] += 1
            else:
                wrong.append(f"{name}={value!r}: {found}")
    assert not wrong, "\n".join(wrong)
    assert count["equal"] > 100 and count["refused"] > 100, count
