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


@contextmanager
def bench_model(name: str, engine: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (model to load, engine arguments); the name of a dummy becomes a temporary folder."""
    if name not in DUMMIES:
        yield name, engine
        return
    with TemporaryDirectory(prefix=f"{name}-") as folder:
        Path(folder, "config.json").write_text(json.dumps(DUMMIES[name], indent=2))
        yield folder, {**engine, "load_format": "dummy", "skip_tokenizer_init": True}
