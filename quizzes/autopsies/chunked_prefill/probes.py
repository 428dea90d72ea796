"""A model whose state is a digest of the tokens before, as KV is."""

import zlib
from types import ModuleType


def digest(tokens: list[int]) -> int:
    """Return a number for the tokens that a model has seen; other tokens or another order give another number."""
    return zlib.crc32(repr(list(tokens)).encode())


class Model:
    """process(tokens, start=0, past=()): tokens whose positions begin at `start`, behind the cached ones in `past`."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        """First position of each forward pass."""
        self.states: list[int] = []

    def process(self, tokens: list[int], start: int = 0, past: list[int] | tuple[int, ...] = ()) -> int:
        self.starts.append(start)
        self.states.append(digest([*past, *tokens]))
        return self.states[-1]


def _run(given: ModuleType, length: int, chunk_size: int) -> tuple[Model, int]:
    """Return the model after one prompt, and the number of decode passes."""
    model = Model()
    decodes: list[int] = []
    given.chunked_prefill(model, list(range(length)), lambda: decodes.append(1), chunk_size)
    return model, len(decodes)


def knows_the_whole_prompt(given: ModuleType, *, length: int = 3000, chunk_size: int = 1024) -> bool:
    """Whether the state after the last chunk is that of the whole prompt."""
    model, _ = _run(given, length, chunk_size)
    return model.states[-1] == digest(list(range(length)))


def first_positions(given: ModuleType, *, length: int = 3000, chunk_size: int = 1024) -> list[int]:
    """The position that each chunk's first token is given."""
    return _run(given, length, chunk_size)[0].starts


def forward_passes(given: ModuleType, *, length: int = 3000, chunk_size: int = 1024) -> int:
    """Forward passes for one prompt beside running decodes; each reads all weights once."""
    model, decodes = _run(given, length, chunk_size)
    return len(model.starts) + decodes


def first_tokens_returned(given: ModuleType, *, length: int = 100, chunk_size: int = 1024) -> bool:
    """Whether the caller gets anything to sample the first token from."""
    return given.chunked_prefill(Model(), list(range(length)), lambda: None, chunk_size) is not None
