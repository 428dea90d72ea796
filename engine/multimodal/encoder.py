"""A toy vision encoder: an image in, NUM_TOKENS embeddings of the model's hidden size out. Nothing is trained.

    pixels [H, W, 3]  ->  32 x 32 by nearest neighbour  ->  4 x 4 patches of 8 x 8 x 3  ->  random projection

The projection has a fixed seed, so an image has the same embeddings in every process. The shape is that of ViT's
patch embedding (Dosovitskiy et al. 2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

SIDE, PATCH = 32, 8
NUM_TOKENS = (SIDE // PATCH) ** 2  # Placeholder tokens of every image


class ToyImageEncoder:
    """Turn images into embeddings that replace those of placeholder tokens."""

    def __init__(self, hidden_size: int, scale: float, dtype: torch.dtype, device: torch.device) -> None:
        """scale: standard deviation of the embeddings, that of the model's own."""
        generator = torch.Generator().manual_seed(0)
        width = PATCH * PATCH * 3
        weight = torch.randn(width, hidden_size, generator=generator) * scale / width**0.5
        self._weight = weight.to(device)
        self._dtype = dtype
        self.num_runs = 0

    def __call__(self, pixels: np.ndarray) -> Tensor:
        """Encode uint8 [H, W, 3] to [NUM_TOKENS, hidden]."""
        self.num_runs += 1
        rows, columns = (np.arange(SIDE) * size // SIDE for size in pixels.shape[:2])
        resized = torch.from_numpy(np.ascontiguousarray(pixels[rows][:, columns]))
        image = resized.to(self._weight.device, torch.float32)
        patches = image.view(SIDE // PATCH, PATCH, SIDE // PATCH, PATCH, 3).transpose(1, 2)
        normalised = patches.reshape(NUM_TOKENS, -1) / 127.5 - 1
        return (normalised @ self._weight).to(self._dtype)


def as_pixels(image: Any) -> np.ndarray:
    """Return uint8 [H, W, 3] of an array, a tensor or a PIL image. Raises ValueError for anything else."""
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ValueError(
            f"an image must be uint8 of shape [height, width, 3], got {pixels.dtype} {list(pixels.shape)}; "
            "convert it with PIL's .convert('RGB') or numpy's .astype('uint8')"
        )
    return pixels
