"""A tiny random model, requests for it, and a loop that runs them: no trained weights are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.config import EngineArgs
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams

VOCAB_SIZE = 128
EOS = 1
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": EOS,
}


def write_tiny_llama(folder: Path) -> Path:
    """A folder that holds its config.json: `load_format="dummy"` needs no more."""
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
    return folder


def tiny_settings(model_dir: Path) -> dict[str, Any]:
    """Engine arguments for it: random weights, token ids, blocks of four."""
    return {
        "model": str(model_dir),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "block_size": 4,
    }


@contextmanager
def engine_factory(**defaults: Any) -> Iterator[Callable[..., EngineCore]]:
    """A function that starts engines, every invariant checked after every step; they end with the block."""
    engines: list[EngineCore] = []

    def make(**overrides: Any) -> EngineCore:
        settings = {**defaults, "debug_checks": True, **overrides}
        engines.append(EngineCore.from_args(EngineArgs.create(**settings)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


def request(
    request_id: str, prompt: list[int], *, seed: int = 0, priority: int = 0, **params: Any
) -> Request:
    """Greedy, eight tokens and deaf to eos, unless told otherwise."""
    settings = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **params}
    bad_words = settings.pop("bad_words_token_ids", [])
    sampling_params = SamplingParams(**settings)
    sampling_params.bad_words_token_ids = bad_words
    eos = frozenset() if sampling_params.ignore_eos else frozenset({EOS})
    return Request(request_id, prompt, sampling_params, seed=seed, priority=priority, eos_token_ids=eos)


def run(
    engine: EngineCore, requests: list[Request], max_steps: int = 2000
) -> dict[str, list[EngineCoreOutput]]:
    """Add everything, step until nothing is left: the outputs of each request in order."""
    for item in requests:
        engine.add_request(item)
    outputs: dict[str, list[EngineCoreOutput]] = {item.request_id: [] for item in requests}
    for _ in range(max_steps):
        if not engine.has_unfinished():
            return outputs
        for output in engine.step():
            outputs[output.request_id].append(output)
    raise AssertionError(f"not finished after {max_steps} steps: {list(engine.scheduler.requests)}")


def tokens(outputs: dict[str, list[EngineCoreOutput]]) -> dict[str, list[int]]:
    """Return the tokens of each request."""
    return {name: [t for output in outs for t in output.new_token_ids] for name, outs in outputs.items()}


def free_slots(engine: EngineCore) -> int:
    """State slots that no request holds in the worker."""
    state = engine.executor.worker.runner.state
    return len(state.token_ids) - len(state.slot_of)
