"""Replace the image markers of a prompt by placeholder tokens.

    "Cover: <image> What is this?"   ->   ids("Cover: ")  P P P ... P  ids(" What is this?")
                                                          `- NUM_TOKENS, offset and content hash in a MultiModalFeature

Source: vLLM multimodal/processing.py (prompt replacement) and multimodal/hasher.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.core.request import MultiModalFeature
from engine.multimodal.encoder import NUM_TOKENS, as_pixels
from prep_common.text import counted

MARKER = "<image>"
PLACEHOLDER_ID = 0
"""Id of placeholder tokens. Any id works: their embeddings are replaced, and content hashes distinguish images."""


def place_images(
    text: str, images: Sequence[Any], encode: Callable[..., list[int]]
) -> tuple[list[int], list[MultiModalFeature]]:
    """Return token ids and features of a text with one MARKER per image. Raises ValueError if the numbers differ."""
    parts = text.split(MARKER)
    if len(parts) - 1 != len(images):
        raise ValueError(
            f"the prompt has {counted(len(parts) - 1, MARKER + ' marker')} for "
            f"{counted(len(images), 'image')}; write one where each belongs"
        )
    token_ids = encode(parts[0]) if parts[0] or not images else []
    features: list[MultiModalFeature] = []
    for image, part in zip(images, parts[1:], strict=True):
        pixels = as_pixels(image)
        shape = ",".join(map(str, pixels.shape)).encode()
        digest = hashlib.sha256(shape + b":" + np.ascontiguousarray(pixels).tobytes()).hexdigest()
        features.append(MultiModalFeature(digest, len(token_ids), NUM_TOKENS, pixels))
        token_ids = [*token_ids, *[PLACEHOLDER_ID] * NUM_TOKENS]
        if part:
            token_ids += encode(part, add_special_tokens=False)
    return token_ids, features
