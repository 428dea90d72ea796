"""A model whose state is a digest of the tokens before, as KV is."""

import zlib
from types import ModuleType
from typing import Any


def digest(tokens: list[int]) -> int:
    """Return a number for the tokens that a model has seen; other tokens or another order give another number."""
    return zlib.crc32(repr(list(tokens)).encode())


class Model:
    """process(tokens, start=0, past=()): tokens whose positions begin at `start`, behind the cached ones in `past`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        """(start, number of tokens) of each forward pass."""
        self.passes = 0

    def process(self, tokens: list[int], start: int = 0, past: list[int] | tuple[int, ...] = ()) -> int:
        self.passes += 1
        self.calls.append((start, len(tokens)))
        return digest([*past, *tokens])


def _run(given: ModuleType, length: int, chunk_size: int) -> tuple[Any, list[int]]:
    decodes: list[int] = []
    seen: list[int] = []

    class Watching(Model):
        def process(self, tokens: list[int], start: int = 0, past: Any = ()) -> int:
            seen.append(super().process(tokens, start, past))
            return seen[-1]

    model = Watching()

    def decode() -> None:
        model.passes += 1
        decodes.append(1)

    given.chunked_prefill(model, list(range(length)), decode, chunk_size)
    return model, seen


def knows_the_whole_prompt(given: ModuleType, *, length: int = 3000, chunk_size: int = 1024) -> bool:
    """Whether the state after the last chunk is that of the whole prompt."""
    _, seen = _run(given, length, chunk_size)
    return seen[-1] == digest(list(range(length)))


def first_positions(given: ModuleType, *, length: int = 3000, chunk_size: int = 1024) -> list[int]:
    """The position that each chunk's first token is given."""
    return [start for start, _ in _run(given, length, chunk_size)[0].calls]


def forward_passes(given: ModuleType, *, length: int = 3000, chunk_size: int = 1024) -> int:
    """Forward passes for one prompt beside running decodes; each reads all weights once."""
    return _run(given, length, chunk_size)[0].passes


def first_tokens_returned(given: ModuleType, *, length: int = 100, chunk_size: int = 1024) -> bool:
    """Whether the caller gets anything to sample the first token from."""
    return given.chunked_prefill(Model(), list(range(length)), lambda: None, chunk_size) is not None
