"""A copy of a model whose linear layers went through the learner's quantize and dequantize."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from engine.zoo.registry import resolve
from lessons.mine.errors import PieceError, ask
from lessons.mine.pieces import Pieces

GROUP_SIZE = 64


def write_quantised(model: str, folder: Path, pieces: Pieces, bits: int) -> float:
    """Write the rounded model to `folder`. Return the largest error of a weight, relative to its row's largest."""
    piece = pieces["quantiser"]
    quantize, dequantize = piece.namespace["quantize"], piece.namespace.get("dequantize")
    if dequantize is None:
        raise PieceError(piece.says, "it defines quantize and dequantize", "dequantize is missing")
    source, worst = resolve(model), 0.0
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy2(path, folder / path.name)
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        for name, weight in tensors.items():
            if not name.endswith("_proj.weight"):
                continue
            plain = weight.float()
            codes, scales = ask(piece.says, f"quantize {name}", quantize, plain, bits, GROUP_SIZE)
            rounded = ask(piece.says, f"dequantize {name}", dequantize, codes, scales, GROUP_SIZE)
            if rounded.shape != weight.shape:
                detail = f"{name}: {tuple(weight.shape)} became {tuple(rounded.shape)}"
                raise PieceError(piece.says, "the shape stays", detail)
            largest = plain.abs().amax(-1, keepdim=True).clamp(min=1e-12)
            worst = max(worst, float(((rounded.float() - plain).abs() / largest).max()))
            tensors[name] = rounded.to(weight.dtype).contiguous()
        save_file(tensors, folder / path.name, metadata={"format": "pt"})
    return worst
