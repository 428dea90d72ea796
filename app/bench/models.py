"""Models for benchmarks: a shape without a checkpoint, filled with random numbers.

`dummy-386m` has the shape of a small chat model (Qwen2.5-0.5B with a smaller vocabulary): large enough that the
matrix products, not Python, dominate its run time, and small enough for a laptop. `dummy-103m` takes about 12 ms for a
step on one core: several replicas of it fit on a laptop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

DUMMIES: dict[str, dict[str, Any]] = {
    "dummy-386m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 32_000,
        "max_position_embeddings": 2048,
        "rope_theta": 500_000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
}
DUMMIES["dummy-103m"] = DUMMIES["dummy-386m"] | {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 2048,
}


def write_checkpoint(name: str, folder: Path) -> None:
    """Write a dummy with random weights in bf16, for engines that load nothing but files.

    A checkpoint's numbers are bf16 as in most models, in whatever type an engine computes with them.
    """
    import torch
    from safetensors.torch import save_file

    from engine.config import EngineArgs
    from engine.models.hf_config import load_model_config
    from engine.models.loader import checkpoint_tensors, create_model

    config = DUMMIES[name] | {"torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    args = EngineArgs.create(model=str(folder), load_format="dummy", skip_tokenizer_init=True)
    shapes = checkpoint_tensors(create_model(load_model_config(args), "meta"))
    random = torch.Generator().manual_seed(0)
    weights = {}
    for key, like in shapes.items():
        if like.dim() == 1:
            weights[key] = torch.ones(like.shape, dtype=torch.bfloat16)
        else:
            weights[key] = torch.empty(like.shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=random)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@contextmanager
def bench_model(
    name: str, engine: dict[str, Any], *, with_weights: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (model to load, engine arguments); the name of a dummy becomes a temporary folder.

    with_weights: write the random weights to a file, instead of leaving them to the engine that loads it.
    """
    if name not in DUMMIES:
        yield name, engine
        return
    with TemporaryDirectory(prefix=f"{name}-") as folder:
        if with_weights:
            write_checkpoint(name, Path(folder))
            yield folder, {**engine, "skip_tokenizer_init": True}
            return
        Path(folder, "config.json").write_text(json.dumps(DUMMIES[name], indent=2))
        yield folder, {**engine, "load_format": "dummy", "skip_tokenizer_init": True}
