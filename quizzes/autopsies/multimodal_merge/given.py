"""Text and images as one input."""

from typing import Any


class MultiModalEngine:
    def __init__(self, tokenizer: Any, vision_encoder: Any) -> None:
        self.tokenizer = tokenizer
        self.vision_encoder = vision_encoder

    def process(self, text: str, images: list[Any]) -> list[Any]:
        tokens = self.tokenizer.encode(text)
        features = self.vision_encoder(images)
        return self._combine(tokens, features)

    def _combine(self, tokens: list[int], features: list[list[float]]) -> list[Any]:
        return list(tokens) + [feature for image in features for feature in image]
