"""Our logits against Hugging Face transformers', for every architecture we claim.

Random tiny checkpoints are written by transformers and read by us; every logit of three sequences must agree,
whether it came from a prefill, a chunk of one, or a decode step in a mixed batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import ConfigError, EngineArgs, ModelConfig
from engine.models.families import FAMILIES
from engine.models.hf_config import load_model_config
from engine.models.loader import load_model
from tests.differential.harness import PagedModel, Sequence

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * pair for pair in range(8)],
    "long_factor": [1.0 + pair * pair for pair in range(8)],
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (family.architecture.removesuffix("ForCausalLM"), fields)
        for family in FAMILIES.values()
        if isinstance(family.tiny, dict)
        for name, fields in family.tiny.items()
    },
    "llama 3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama dynamic rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama longrope": ("Llama", {"rope_parameters": LONGROPE}),
    "qwen2 yarn": ("Qwen2", {"rope_parameters": YARN}),
}
PROMPT_LENGTHS = (37, 12, 25)
NUM_DECODES = 20
BACKENDS = ("reference", "sdpa", "cpu")
TOLERANCE = 1e-4


@dataclass
class Case:
    """A checkpoint on disk, three sequences, and what transformers says about them."""

    folder: Path
    config: ModelConfig
    model: torch.nn.Module
    sequences: list[list[int]]
    expected: list[Tensor]
    """[len(sequence), vocab] each."""


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "_").replace(",", ""))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("checkpoint")
    theirs = write_checkpoint(*CASES[request.param], folder)
    generator = torch.Generator().manual_seed(1)
    sequences = [
        torch.randint(SHAPE["vocab_size"], (length + NUM_DECODES,), generator=generator)
        for length in PROMPT_LENGTHS
    ]
    with torch.no_grad():
        expected = [theirs(sequence[None]).logits[0] for sequence in sequences]
    config = load_model_config(EngineArgs(model=str(folder), device="cpu"))
    return Case(folder, config, load_model(config, "cpu"), [s.tolist() for s in sequences], expected)


def write_checkpoint(family: str, overrides: dict[str, Any], folder: Path) -> torch.nn.Module:
    """A random model of transformers, saved in several shards. Spread wide enough that every weight matters."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **overrides})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if name.endswith("norm.weight") else 0.15 * noise)
    model.save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return model


def paged_model(case: Case, backend: str, **settings: Any) -> PagedModel:
    """Skips what this backend does not serve here: its claim is tested in tests/contracts."""
    try:
        return PagedModel(case.model, case.config, backend, **settings)
    except ConfigError as error:
        pytest.skip(str(error))


def assert_logits(actual: Tensor, expected: Tensor, where: str) -> None:
    assert expected.abs().max() > 0.5, "logits too flat to tell right from wrong"
    difference = (actual - expected).abs().max().item()
    assert difference < TOLERANCE, f"{where}: logits differ by {difference:.2e}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_prefill_and_20_decode_steps_give_the_logits_of_transformers(case: Case, backend: str) -> None:
    paged = paged_model(case, backend)
    for index, tokens in enumerate(case.sequences):
        sequence = Sequence(tokens)
        logits = paged.step([(sequence, PROMPT_LENGTHS[index])])
        for _ in range(NUM_DECODES):
            logits += paged.step([(sequence, 1)])
        assert_logits(torch.cat(logits), case.expected[index], f"sequence {index}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunked_prefill_in_mixed_batches_gives_the_logits_of_transformers(case: Case, backend: str) -> None:
    paged = paged_model(case, backend)
    sequences = [Sequence(tokens) for tokens in case.sequences]
    logits: list[list[Tensor]] = [[], [], []]
    # Prompts of 37, 12 and 25 tokens, cut so that chunks, decodes and single-token chunks share steps.
    chunks = [(9, 0, 0), (7, 12, 0), (1, 1, 11), (20, 1, 1), (1, 1, 13)]
    for step, chunk in enumerate(chunks + [(1, 1, 1)] * (NUM_DECODES - 3)):
        active = [index for index in range(3) if chunk[index]]
        work = [(sequences[index], chunk[index]) for index in active]
        for index, rows in zip(active, paged.step(work, padding=step % 3), strict=True):
            logits[index].append(rows)
    for index in range(3):
        actual = torch.cat(logits[index])
        assert_logits(actual, case.expected[index][: len(actual)], f"sequence {index}")


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
def test_a_request_whose_blocks_were_used_before_gives_the_same_logits(case: Case, backend: str) -> None:
    paged = paged_model(case, backend, num_blocks=16)
    first, second = Sequence(case.sequences[0][:40]), Sequence(case.sequences[2])
    paged.step([(first, 40)])
    paged.free += first.blocks
    (logits,) = paged.step([(second, 25)])
    assert_logits(logits, case.expected[2][:25], "second owner of the blocks")


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
def test_bfloat16_logits_stay_near_those_of_float32(case: Case, backend: str) -> None:
    config = load_model_config(EngineArgs(model=str(case.folder), device="cpu", dtype="bfloat16"))
    in_16_bit = Case(case.folder, config, load_model(config, "cpu"), case.sequences, case.expected)
    paged = paged_model(in_16_bit, backend)
    (logits,) = paged.step([(Sequence(case.sequences[0]), 37)])
    expected = case.expected[0][:37]
    assert logits.dtype == torch.float32
    # With experts a token near a tie goes elsewhere: transformers' own mixtral is 10 % off in bfloat16.
    limit = 0.05 if config.moe is None else 0.15
    difference = float((logits - expected).abs().mean() / expected.abs().mean())
    assert difference < limit, (
        f"bfloat16: mean difference {difference:.1%}, at most {limit:.0%}. If transformers in bfloat16 differs as "
        "much, choose milder values in `tiny` of the family's entry"
    )


BEYOND: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn": ("Qwen2", {"rope_parameters": {**YARN, "original_max_position_embeddings": 20}}),
    "dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
    "longrope": ("Llama", {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 20}}),
}


@pytest.mark.parametrize("rule", BEYOND)
def test_beyond_the_original_context_a_prompt_of_max_model_len_has_the_logits_of_transformers(
    rule: str, tmp_path: Path
) -> None:
    family, overrides = BEYOND[rule]
    positions = 20 if rule == "dynamic" else 80
    theirs = write_checkpoint(family, {**overrides, "max_position_embeddings": positions}, tmp_path)
    tokens = torch.randint(SHAPE["vocab_size"], (57,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0]
    config = load_model_config(EngineArgs(model=str(tmp_path), device="cpu", max_model_len=57))
    model = PagedModel(load_model(config, "cpu"), config, "sdpa")
    sequence = Sequence(tokens.tolist())
    logits = model.step([(sequence, 40)])
    for _ in range(17):
        logits += model.step([(sequence, 1)])
    assert_logits(torch.cat(logits), expected, rule)
