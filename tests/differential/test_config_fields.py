"""Every field of config.json: with any value we compute what transformers computes, or refuse the checkpoint.

A field of the transformers config classes, or one that other families have, is changed in the config.json of a random
tiny checkpoint. transformers builds the model, both sides load it, and the log-probabilities are compared.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import ConfigError, EngineArgs
from engine.models.config_fields import HARMLESS, NEUTRAL
from engine.models.families import FAMILIES as ENTRIES
from engine.models.hf_config import load_model_config
from engine.models.loader import load_model
from tests.differential.harness import PagedModel, Sequence
from tests.differential.test_logits import LLAMA3_ROPE, LONGROPE, SHAPE, YARN

FAMILIES = {name: entry.model_type for name, entry in ENTRIES.items() if isinstance(entry.tiny, dict)}
TINY: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"sliding_window": 8, "head_dim": 16},
    "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2ForCausalLM": {"max_window_layers": 1},
    "Qwen3ForCausalLM": {"head_dim": 16, "max_window_layers": 1},
    "Qwen3MoeForCausalLM": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
    },
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
TOKENS = torch.randint(101, (40,), generator=torch.Generator().manual_seed(3))
CHECKED_LENGTH = 30
"""Prompt; the tokens after it are computed one by one, as decode steps."""
TOLERANCE = 2e-3

VALUES: tuple[Any, ...] = (None, True, False, 0, 1, 2, 8, -1, 0.5, "x", [], {}, [1], {"0": 1}, 10**12)
"""Values that every field is given; most fields refuse most of them."""
OWN_VALUES: dict[str, tuple[Any, ...]] = {
    "layer_types": (LAYERS, LAYERS[:2], ["full_attention"] * 3, ["sliding_attention"] * 3, ["chunked_attention"] * 3),
    "hidden_act": ("gelu", "relu", "silu"),
    "rms_norm_eps": (1e-3, 1e-12),
    "num_key_value_heads": (1, 3, 6),
    "num_hidden_layers": (4,),
    "vocab_size": (102,),
    "hidden_size": (48, 97),
    "intermediate_size": (64,),
    "max_position_embeddings": (32, 64),
    "head_dim": (6, 7, 24),
    "mlp_only_layers": ([0], [0, 2], [7]),
    "sliding_window": (5, 16, 300),
    "rope_theta": (1e6, 500, 1),
    "rope_scaling": ({"type": "linear", "factor": 2.0}, {"rope_type": "yarn"}, {**LLAMA3_ROPE}),
    "rope_parameters": (
        YARN, LONGROPE, LLAMA3_ROPE, {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, {"rope_type": "proportional"},
        {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "partial_rotary_factor": (1.0,),
    "model_type": tuple(FAMILIES.values()),
    "architectures": ([[name] for name in FAMILIES]),
    "per_layer_config": ({"1": {"intermediate_size": 64}}, {"1": {"sliding_window": 4}}),
    "attn_implementation": ("eager", "sdpa"),
    "quantization_config": ({"quant_method": "awq", "bits": 4},),
}  # fmt: skip


def base_config(architecture: str) -> dict[str, Any]:
    kind = {"architectures": [architecture], "model_type": FAMILIES[architecture]}
    return {**kind, **SHAPE, **TINY.get(architecture, {})}


def field_names(architecture: str) -> list[str]:
    """Return the fields of this family's class, of the other families' and those of other models that we refuse."""
    from transformers import AutoConfig

    names = {name for family in FAMILIES for name in AutoConfig.for_model(FAMILIES[family]).to_dict()}
    names |= (
        {name for entry in ENTRIES.values() for name in entry.all_reads}
        | NEUTRAL.keys()
        | {"num_experts", "_name_or_path"}
    )
    return sorted(names - {"transformers_version"})


def model_of_transformers(folder: Path) -> tuple[Any, Tensor] | None:
    """Build the model that config.json describes, and compute its log-probabilities; None if transformers cannot."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    try:
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", dtype=torch.float32
        ).eval()
        with torch.no_grad():
            for name, parameter in sorted(model.named_parameters()):
                noise = torch.randn(parameter.shape)
                parameter.copy_(1 + 0.2 * noise if name.endswith("norm.weight") else 0.15 * noise)
            return model, model(TOKENS[None]).logits[0].log_softmax(-1)
    except Exception:  # of any kind: transformers has no error of its own for this
        return None


def save_weights(model: Any, folder: Path) -> bool:
    """Save the weights beside config.json, which stays as it is; False if transformers cannot."""
    text = (folder / "config.json").read_text()
    try:
        model.save_pretrained(folder)
    except Exception:  # of any kind, too
        return False
    finally:
        (folder / "config.json").write_text(text)
    return True


def our_log_probs(folder: Path) -> Tensor:
    config = load_model_config(EngineArgs(model=str(folder), device="cpu"))
    paged = PagedModel(load_model(config, "cpu"), config, "sdpa")
    tokens = TOKENS[: config.max_position_embeddings].tolist()
    sequence = Sequence(tokens)
    logits = paged.step([(sequence, min(CHECKED_LENGTH, len(tokens)))])
    for _ in range(len(tokens) - CHECKED_LENGTH):
        logits += paged.step([(sequence, 1)])
    return torch.cat(logits).log_softmax(-1)


def verdict(folder: Path, raw: dict[str, Any], seen: dict[str, Tensor] | None = None) -> str:
    """Return "equal", "refused", "theirs refuse", or how the two differ.

    seen: what we computed for our configurations so far. Most fields leave ours as it was; then our model is that of
    before, and is computed again only if transformers' now differs from it.
    """
    seen = {} if seen is None else seen
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    (folder / "config.json").write_text(json.dumps(raw))
    try:
        config = load_model_config(EngineArgs(model=str(folder), device="cpu", load_format="dummy"))
        ours = repr(replace(config, fingerprint=""))  # which names all of config.json
        if (theirs := model_of_transformers(folder)) is None:
            return "theirs refuse"
        model, expected = theirs
        if ours not in seen or difference(seen[ours], expected) >= TOLERANCE:
            if not save_weights(model, folder):
                return "theirs refuse"
            seen[ours] = our_log_probs(folder)
    except ConfigError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    far = difference(seen[ours], expected)
    return "equal" if far < TOLERANCE else f"log-probabilities differ by {far:.2g}"


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, over the tokens that we computed."""
    expected = expected[: len(found)]
    return (found - expected).abs().max().item() if found.shape == expected.shape else float("inf")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("transformers").setLevel(logging.CRITICAL)


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("MistralForCausalLM", {"layer_types": LAYERS}, "equal"),
        ("Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 8}, "equal"),
        (
            "Qwen3MoeForCausalLM",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
            "refused",
        ),
        ("MixtralForCausalLM", {"sliding_window": 8, "layer_types": LAYERS}, "refused"),
        ("LlamaForCausalLM", {"sliding_window": 8}, "refused"),
        ("LlamaForCausalLM", {"per_layer_config": {"1": {"intermediate_size": 64}}}, "refused"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_a_field_that_changes_the_logits_is_computed_or_refused(
    tmp_path: Path, architecture: str, changes: dict[str, Any], expected: str
) -> None:
    assert verdict(tmp_path / "model", {**base_config(architecture), **changes}) == expected


def test_a_head_stored_beside_a_tied_embedding_is_used_as_transformers_does(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    raw = base_config("LlamaForCausalLM")
    folder = tmp_path / "model"
    assert verdict(folder, raw) == "equal"
    (folder / "config.json").write_text(json.dumps({**raw, "tie_word_embeddings": True}))
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(folder)(TOKENS[None]).logits[0].log_softmax(-1)
    assert (our_log_probs(folder) - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_field_of_the_transformers_class_is_in_the_table(architecture: str) -> None:
    from transformers import AutoConfig

    known = {*ENTRIES[architecture].all_reads, *HARMLESS, *NEUTRAL}
    config = AutoConfig.for_model(FAMILIES[architecture])
    names = {*config.to_dict(), *config.attribute_map, *vars(config)}
    assert not {name for name in names if name not in known and not name.startswith("_")}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_an_absent_key_has_the_default_of_the_transformers_class(tmp_path: Path, architecture: str) -> None:
    """The defaults that shape the computation: written out they mean the same as left out."""
    from transformers import AutoConfig

    sizes = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
    defaults = AutoConfig.for_model(FAMILIES[architecture]).to_dict()
    raw = {"architectures": [architecture], **{name: defaults[name] for name in sizes}}
    written = {name: value for name, value in defaults.items() if name in ENTRIES[architecture].all_reads}
    configs = []
    for number, content in enumerate((raw, {**written, **raw, "head_dim": defaults.get("head_dim")})):
        folder = tmp_path / str(number)
        folder.mkdir()
        content.pop("dtype", None)
        (folder / "config.json").write_text(json.dumps(content))
        config = load_model_config(EngineArgs(model=str(folder), device="cpu", load_format="dummy"))
        configs.append({name: getattr(config, name) for name in ModelConfigFields})
    assert configs[0] == configs[1]


ModelConfigFields = (
    "head_dim", "num_key_value_heads", "rms_norm_eps", "rope", "max_position_embeddings", "tie_word_embeddings",
    "attention_bias", "attention_output_bias", "mlp_bias", "qk_norm", "sliding_window", "moe", "extras",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_value_of_every_field_is_computed_as_by_transformers_or_refused(
    tmp_path: Path, architecture: str
) -> None:
    """Also with a window, where fields may name the layers that have one."""
    base = base_config(architecture)
    windowed = {**base, "use_sliding_window": True, "sliding_window": 8}
    seen: dict[str, Tensor] = {}
    wrong, count = [], {"equal": 0, "refused": 0, "theirs refuse": 0}
    for name in field_names(architecture):
        for value in (*VALUES, *OWN_VALUES.get(name, ())):
            for raw in (base, windowed) if "window" in name or "layer" in name else (base,):
                found = verdict(tmp_path / "model", {**raw, name: value}, seen)
                if found in count:
                    count[found] += 1
                else:
                    wrong.append(f"{name}={value!r} (window {raw.get('sliding_window')}): {found}")
    assert not wrong, "\n".join(wrong)
    assert count["equal"] > 100 and count["refused"] > 100, count
