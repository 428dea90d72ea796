"""Medusa heads: residual blocks on a model's last hidden state, each of which predicts a token further ahead.

    hidden state f_i  --> blocks.0 --> output table --> guess for position i + 2     (i + 1 is the target's own token)
                      --> blocks.1 --> output table --> guess for position i + 3

A checkpoint has vLLM's names (`blocks.0.layers.0.weight`) or those of the Medusa repository (`0.0.linear.weight`), and
output tables: one per head, one for all, or none. Without one the heads use the target's table, which vLLM does not
support: it needs `lm_head.weight` in the file.

Sources: Cai et al. 2024 (2401.10774), section 2.1.1; vLLM model_executor/models/medusa.py and
transformers_utils/configs/medusa.py. Not supported here: `token_map`, a table of the most frequent tokens only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import ConfigError, MedusaConfig, ModelConfig
from engine.layers.linear import Linear
from engine.models.checkpoint import StoredTensor, read_headers, read_json
from engine.models.loader import check_fit, checkpoint_tensors, copy_tensors, fill_with_random

ARCHITECTURE = "MedusaModel"
_OLD_NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.)?(weight|bias)")


def load_medusa_config(name: str, folder: Path, target: ModelConfig) -> MedusaConfig:
    """Return the shape of the heads in `folder`; sizes that config.json omits are the target's. Raises ConfigError."""
    source = folder / "config.json"
    raw = read_json(source)
    names = raw.get("architectures")
    kind = names[0] if isinstance(names, list) and names else raw.get("model_type", "model of unknown kind")
    if kind != ARCHITECTURE and raw.get("model_type") != "medusa" and "medusa_num_heads" not in raw:
        raise ConfigError(
            f"speculative method 'medusa' does not go with {name}, which is a {kind}; give a folder of Medusa heads"
        )
    is_dummy = target.load_format == "dummy"
    stored = {} if is_dummy else stored_tensors(folder, raw)

    def number(key: str, default: int) -> int:
        value = raw.get(key, raw.get(f"medusa_{key}", default))
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{source}: {key!r} is {value!r}, expected a positive integer")
        return value

    vocab_size = number("vocab_size", target.vocab_size)
    if number("truncated_vocab_size", vocab_size) != vocab_size:
        raise ConfigError(
            f"{source}: truncated_vocab_size {raw['truncated_vocab_size']} is not supported; use heads for all "
            f"{vocab_size} tokens"
        )
    num_heads = number("num_heads", 5)  # vLLM's default
    num_tables = sum(key.startswith("lm_heads.") for key in stored)
    if num_tables not in (0, 1 if raw.get("original_lm_head", False) else num_heads):
        raise ConfigError(
            f"{folder} holds {num_tables} output tables for {num_heads} heads; expected one per head, none, or one "
            'with "original_lm_head": true in config.json'
        )
    return MedusaConfig(
        model=name,
        path=folder,
        dtype=target.dtype,
        hidden_size=number("hidden_size", target.hidden_size),
        vocab_size=vocab_size,
        num_heads=num_heads,
        num_layers=number("num_hidden_layers", raw.get("medusa_num_layers", 1)),
        bias=bool(raw.get("medusa_fc_bias", False)),
        num_tables=num_tables,
        load_format=target.load_format,
        seed=target.seed,
    )


def stored_tensors(folder: Path, raw: dict[str, Any]) -> dict[str, tuple[str, StoredTensor]]:
    """Return vLLM's name -> name in the file and header, for the tensors that the heads use.

    One table for all heads is `lm_heads.0.weight`, whichever of its two names the file has.
    """
    stored: dict[str, tuple[str, StoredTensor]] = {}
    for name, tensor in read_headers(folder).items():
        known = _vllm_name(name)
        is_spare = raw.get("original_lm_head", False) and re.match(r"lm_heads\.[1-9]", known)
        if known != "token_map" and not is_spare:
            stored[known] = (name, tensor)
    return stored


def _vllm_name(name: str) -> str:
    """Translate a name of the Medusa repository, whose heads are sequences of residual blocks and a table."""
    name = name.removeprefix("medusa_heads.")
    if name == "lm_head.weight":
        return "lm_heads.0.weight"
    if (match := _OLD_NAME.fullmatch(name)) is None:
        return name
    head, layer, is_block, kind = match.groups()
    return f"blocks.{head}.layers.{layer}.{kind}" if is_block else f"lm_heads.{head}.{kind}"


class ResidualBlock(nn.Module):
    """x + silu(linear(x)), once per layer."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        size, dtype = config.hidden_size, cast(torch.dtype, getattr(torch, config.dtype))
        self.layers = nn.ModuleList(
            Linear(size, size, bias=config.bias, dtype=dtype) for _ in range(config.num_layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class MedusaHeads(nn.Module):
    """All heads, and their output tables if they have any."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        dtype = getattr(torch, config.dtype)
        self.blocks = nn.ModuleList(ResidualBlock(config) for _ in range(config.num_heads))
        self.lm_heads = nn.ModuleList(
            Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)
            for _ in range(config.num_tables)
        )

    def forward(
        self, hidden: Tensor, count: int, target_logits: Callable[[Tensor], Tensor | None]
    ) -> list[Tensor]:
        """hidden [R, hidden] -> logits [R, vocab] of the first `count` heads."""
        states = [cast(Tensor, block(hidden)) for block in list(self.blocks)[:count]]
        if not self.lm_heads:
            logits = target_logits(torch.cat(states))  # one product for all heads
            assert logits is not None, "drafters run on one rank"
            return list(logits.split(len(hidden)))
        tables = list(self.lm_heads) * (self.config.num_heads // len(self.lm_heads))
        return [cast(Tensor, table(state)) for table, state in zip(tables, states, strict=False)]


@torch.no_grad()
def load_medusa(config: MedusaConfig, device: torch.device | str) -> MedusaHeads:
    """Return the heads with their weights, in inference mode on `device`. Raises ConfigError if they do not fit."""
    with torch.device(device):
        heads = MedusaHeads(config)
        linears = [module for module in heads.modules() if isinstance(module, Linear)]
        for linear in linears:
            linear.create_weights()
    if config.load_format == "dummy":
        fill_with_random(heads, config.seed)
    else:
        stored = stored_tensors(config.path, read_json(config.path / "config.json"))
        targets = checkpoint_tensors(heads)
        check_fit(targets, {name: tensor for name, (_, tensor) in stored.items()}, config)
        copy_tensors({stored[name][0]: target for name, target in targets.items()}, read_headers(config.path))
    for linear in linears:
        linear.finish_loading()
    return heads.eval()
