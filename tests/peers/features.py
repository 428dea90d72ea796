"""Workloads for the features above plain generation: each asks both engines for the same, by the same names.

lora          three adapters and the base in one batch; random ones of ranks 4, 8 and 16, and those that ship
quantization  every format that `prep zoo quantize` writes
speculation   n-gram drafts and a draft model: tokens, and how many drafts each engine makes and accepts
structured    regex, choice, JSON schema, with xgrammar in both
n             four completions of a prompt: tokens, and what the prefix cache gives
beam          beams and their cumulative log-probabilities
logprobs      of the prompt, computed in chunks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.quant.quantizer.calibration import calibration_texts, tokenized
from engine.quant.quantizer.encode import stored_dtype
from engine.quant.quantizer.recipe import Recipe
from engine.quant.quantizer.run import Report, load_float_model, quantize, write_checkpoint
from engine.zoo.registry import resolve
from engine.zoo.tokenizer import load_tokenizer
from tests.lora.peft_files import write_adapter
from tests.peers.workloads import Workload, last_turns, sampling

RECIPES: dict[str, dict[str, Any]] = {
    "rtn-int4": {"method": "rtn"},
    "rtn-int4-zero-points": {"method": "rtn", "symmetric": False, "group_size": 64},
    "rtn-int8": {"method": "rtn", "bits": 8},
    "gptq-int4": {"method": "gptq"},
    "gptq-int4-act-order": {"method": "gptq", "act_order": True},
    "gptq-int8": {"method": "gptq", "bits": 8},
    "awq-int4": {"method": "awq", "group_size": 64},
    "int8": {"method": "int8"},
    "smoothquant": {"method": "smoothquant"},
    "fp8-dynamic": {"method": "fp8"},
    "fp8-static": {"method": "fp8", "activations": "static"},
}
NOT_IN_VLLM = {
    "rtn-int8": "no CPU kernel for 8-bit weights with float activations",
    "gptq-int4-act-order": "desc_act is no longer supported",
    "gptq-int8": "no CPU kernel for 8-bit weights with float activations",
    "fp8-static": "the CPU build lacks static_scaled_fp8_quant",
}
BF16_NOISE = 1.5
"""Nats by which bf16 moves our own logprobs of a quantised model away from those in fp32 (measured: up to 1.3)."""
LAST_SLOT = (
    "vLLM's CPU kernels read slot -1, that is the last one, for rows without an adapter: with all slots taken the base "
    "answers with another request's adapter (lora/ops/torch_ops); ours are the tokens of an engine without adapters"
)
WHITESPACE = "whitespace between JSON tokens is limited here (max_whitespace) and without a limit in vLLM"
STRUCTURES: list[dict[str, Any]] = [
    {"regex": r"[A-Z][a-z]+ costs [0-9]{1,4} (yen|dollars)\."},
    {"regex": r"(https?://)?[a-z0-9]{3,12}(\.[a-z]{2,4}){1,2}"},
    {"choice": ["yes", "no", "only on weekdays"]},
    {
        "json": {
            "type": "object",
            "properties": {
                "item": {"type": "string", "maxLength": 12},
                "price": {"type": "integer", "minimum": 0, "maximum": 9999},
                "tags": {"type": "array", "items": {"enum": ["new", "sale", "gift"]}, "maxItems": 3},
            },
            "required": ["item", "price", "tags"],
            "additionalProperties": False,
        }
    },
    {"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4}},
]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
FIRST_OR_LAST = (
    "n-gram: the ending is looked up at its first earlier occurrence in vLLM, at its last one here; tokens are the "
    "same, counts of accepted drafts need not be"
)
BEAM_LENGTH = (
    "length penalty: vLLM divides a beam's score by the length of prompt and continuation, we by that of the "
    "continuation alone (as transformers); beams that ended early rank differently"
)
MASKED_LOGPROBS = "tokens only: logprobs are of what the grammar allows in vLLM, of what the model says here"


def lora(model: Path, folder: Path) -> Iterator[Workload]:
    """Every fourth prompt asks the base, the others three adapters of different ranks."""
    random = [write_adapter(folder / f"rank-{rank}", seed=rank, rank=rank) for rank in (4, 8, 16)]
    shipped = sorted(model.parent.glob("shop-lora-*"))
    prompts = [prompt[-128:] for prompt in last_turns(model, 16)]  # vLLM's adapters on a CPU: 100 tokens/s
    settings = sampling(max_tokens=24)
    for name, adapters, max_loras in (
        ("lora-random", random, 4),
        ("lora-shipped", shipped, 4),
        ("lora-no-free-slot", random, 3),
    ):
        turns = [None, *map(str, adapters)]
        chosen = [turns[i % len(turns)] for i in range(len(prompts))]
        engine = {"enable_lora": True, "max_loras": max_loras, "max_lora_rank": 16}
        workload = Workload(name, [prompts], settings, engine, adapters=chosen)
        no_free_slot = max_loras == len(adapters)
        yield replace(workload, note=LAST_SLOT, must_agree=False) if no_free_slot else workload


def quantization(model: Path, folder: Path) -> Iterator[Workload]:
    """One checkpoint for each recipe."""
    batch = tokenized(calibration_texts("in-domain", 24), load_tokenizer(model))
    prompts = last_turns(model, 12)
    for name, settings in RECIPES.items():
        recipe, output = Recipe.create(**settings), folder / name
        weights, original = load_float_model(model)
        report = Report(model.name, recipe, original_bytes=(model / "model.safetensors").stat().st_size)
        tensors = quantize(weights, recipe, batch, original, report, lambda _: None)
        write_checkpoint(model, output, tensors, recipe, stored_dtype(recipe, original), report)
        workload = Workload(name, [prompts], sampling(max_tokens=24), model=str(output))
        if recipe.is_grouped:  # vLLM's CPU kernel takes no fp32
            workload = replace(workload, engine={"dtype": "bfloat16"}, near_tie=BF16_NOISE)
        yield replace(workload, not_in_vllm=NOT_IN_VLLM.get(name, ""))


def speculation(model: Path, _folder: Path) -> Iterator[Workload]:
    prompts = last_turns(model, 32)
    draft = {"method": "draft_model", "model": str(resolve("shop-draft")), "num_speculative_tokens": 4}
    settings = sampling(max_tokens=48)
    yield Workload("spec-draft-model", [prompts], settings, {"speculative_config": draft})
    yield Workload("spec-ngram", [prompts], settings, {"speculative_config": NGRAM}, note=FIRST_OR_LAST)


def structured(model: Path, _folder: Path) -> Iterator[Workload]:
    pairs = [(prompt, STRUCTURES[i % len(STRUCTURES)]) for i, prompt in enumerate(last_turns(model, 20))]
    for name, is_json, is_compact, note in (
        ("structured", False, False, MASKED_LOGPROBS),
        ("structured-json", True, False, WHITESPACE),
        ("structured-json-compact", True, True, MASKED_LOGPROBS),
    ):
        engine = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": is_compact}}
        chosen = [(prompt, structure) for prompt, structure in pairs if ("json" in structure) is is_json]
        settings = [sampling(max_tokens=64, logprobs=None, structured_outputs=each) for _, each in chosen]
        prompts = [prompt for prompt, _ in chosen]
        yield Workload(name, [prompts], settings, engine, note=note, must_agree=is_compact or not is_json)


def completions(model: Path, _folder: Path) -> Iterator[Workload]:
    """Temperature 1 and top_k 1: no noise of an engine's own, yet not greedy, so that n > 1 is allowed."""
    prompts = last_turns(model, 12)
    yield Workload("n=4", [prompts, prompts], sampling(max_tokens=24, temperature=1.0, top_k=1, n=4))


def beam(model: Path, _folder: Path) -> Iterator[Workload]:
    prompts = last_turns(model, 6)
    full = {"beam_width": 4, "max_tokens": 12, "ignore_eos": True}
    ended = {"beam_width": 4, "max_tokens": 24}
    yield Workload("beam-fixed-length", [prompts], {}, beam=full)
    yield Workload("beam-no-penalty", [prompts], {}, beam=ended | {"length_penalty": 0.0})
    yield Workload("beam-penalty-1", [prompts], {}, beam=ended, note=BEAM_LENGTH, must_agree=False)


def logprobs(model: Path, _folder: Path) -> Iterator[Workload]:
    """Twice the same prompts: the second time the cache knows them, and their logprobs must come all the same."""
    prompts = last_turns(model, 8)
    engine = {"max_num_batched_tokens": 256}
    yield Workload("prompt-logprobs", [prompts, prompts], sampling(max_tokens=4, prompt_logprobs=5), engine)


FEATURES: dict[str, Callable[[Path, Path], Iterator[Workload]]] = {
    "lora": lora,
    "quantization": quantization,
    "structured": structured,
    "n": completions,
    "beam": beam,
    "logprobs": logprobs,
    "speculation": speculation,
}
"""In the order in which they run. N-gram drafts come last: once numba has compiled vLLM's, no other LLM with drafts or
adapters starts in the same process."""
