"""Text and images as one input: every placeholder becomes the features of its image."""

from typing import Any


class MultiModalEngine:
    def __init__(self, tokenizer: Any, vision_encoder: Any, placeholder: int) -> None:
        self.tokenizer = tokenizer
        self.vision_encoder = vision_encoder
        self.placeholder = placeholder
        self.encoded: dict[Any, list[float]] = {}
        """Return a hash of the content; a real engine hashes the pixels."""

    def process(self, text: str, images: list[Any]) -> list[Any]:
        tokens = self.tokenizer.encode(text)
        places = tokens.count(self.placeholder)
        if places != len(images):
            raise ValueError(f"the text has room for {places} images, {len(images)} were given")
        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
        if new:
            self.encoded.update(zip(new, self.vision_encoder(new), strict=True))
        upcoming = iter(images)
        combined: list[Any] = []
        for token in tokens:
            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
        return combined
