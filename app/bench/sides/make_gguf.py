"""Write a GGUF file for llama.cpp from a Llama checkpoint in Hugging Face layout.

Runs in llama.cpp's environment with the packages gguf and numpy, and imports nothing of ours. The file has no
tokenizer: prompts are token ids. llama.cpp pairs the numbers 2i and 2i + 1 of a head in its rotary embedding, Hugging
Face's layout i and i + head_dim / 2, so the rows of the query and key matrices change places.

    python make_gguf.py FOLDER FILE bf16

Source: llama.cpp convert_hf_to_gguf.py, LlamaModel.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
"""Type of all matrices, the embedding included; vectors stay in f32."""
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_gguf(folder: Path, file: Path, kind: str) -> None:
    """Write the checkpoint of `folder` to `file`. Raises ValueError for another architecture or type."""
    config = json.loads((folder / "config.json").read_text())
    if config["architectures"] != ["LlamaForCausalLM"]:
        raise ValueError(f"expected LlamaForCausalLM, {folder} has {config['architectures']}")
    if kind not in TYPES:
        raise ValueError(f"expected one of {', '.join(TYPES)}, got {kind!r}")
    unfinished = file.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "llama")
    describe(writer, config)
    for name, tensor in read_checkpoint(folder):
        its_type = TYPES[kind] if tensor.ndim == 2 else TYPES["f32"]
        data = gguf.quants.quantize(arranged(name, tensor, config), its_type)
        writer.add_tensor(gguf_name(name), data, raw_dtype=its_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, file)


def describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Write the model's sizes."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def read_checkpoint(folder: Path) -> list[tuple[str, np.ndarray]]:
    """Return every tensor of model.safetensors in fp32. Raises ValueError for a type that is not a float."""
    content = np.memmap(folder / "model.safetensors", np.uint8, "r")
    header_len = int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8 : 8 + header_len].tobytes())
    header.pop("__metadata__", None)
    tensors = []
    for name, stored in header.items():
        begin, end = (8 + header_len + offset for offset in stored["data_offsets"])
        data = content[begin:end]
        if stored["dtype"] == "BF16":
            values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif stored["dtype"] in ("F16", "F32"):
            values = data.view("<f2" if stored["dtype"] == "F16" else "<f4").astype(np.float32)
        else:
            raise ValueError(f"{name} is {stored['dtype']}; expected BF16, F16 or F32")
        assert values.size == math.prod(stored["shape"])
        tensors.append((name, values.reshape(stored["shape"])))
    return tensors


def arranged(name: str, tensor: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Return the tensor with a head's rows i and i + head_dim / 2 side by side if it is a query or key matrix."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if part not in heads:
        return tensor
    halves = tensor.reshape(heads[part], 2, -1, tensor.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))


def gguf_name(name: str) -> str:
    """Return GGUF's name of a checkpoint's tensor: model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight."""
    if name in NAMES:
        return NAMES[name]
    _, _, layer, *part, _ = name.split(".")
    return f"blk.{layer}.{LAYER_NAMES['.'.join(part)]}.weight"


if __name__ == "__main__":
    make_gguf(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
