"""Damage to the files of a checkpoint or an adapter: cut, overwritten, mistyped in every field, and worse."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DELETED = object()
VALUES: tuple[Any, ...] = (
    DELETED, None, True, False, 0, -1, 1.5, 10**9, 10**30, float("nan"), "", "x", [], [1], ["a"], [[]], {}, {"a": 1},
    {"1": []},
)  # fmt: skip
HEADER_VALUES = (*VALUES, "I64", "BF16", "F4", "F64", [1, 2], [10**12, 10**12], [-1, 5])

Damage = tuple[str, Callable[[Path], object]]
"""Text for messages, and the function that does it to a file."""


def damages(file: Path) -> Iterator[Damage]:
    """Yield every damage to this file, which stays as it is; each is meant for a copy of it."""
    data = file.read_bytes()
    yield "deleted", Path.unlink
    yield "is a folder", lambda path: (path.unlink(), path.mkdir())
    for size in (0, 1, 7, 8, 9, len(data) // 2, len(data) - 1):
        yield f"cut to {size} bytes", lambda path, size=size: path.write_bytes(data[:size])
    for seed in range(6):
        yield f"4 random bytes, seed {seed}", lambda path, seed=seed: path.write_bytes(_flipped(data, seed))
    yield "random content", lambda path: path.write_bytes(random.Random(1).randbytes(500))
    yield "two bytes more", lambda path: path.write_bytes(data + b"xx")
    yield "100,000 brackets", lambda path: path.write_text("[" * 100_000)
    if file.suffix == ".json":
        yield from _mistyped(json.loads(data), VALUES, lambda path, value: path.write_text(json.dumps(value)))
    elif file.suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
        name = next(name for name in header if name != "__metadata__")
        few = {name: header[name], "__metadata__": header.get("__metadata__", {})}

        def write(path: Path, changed: Any) -> None:
            text = json.dumps({**header, **changed} if name in changed else changed).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text + rest)

        yield from _mistyped(few, HEADER_VALUES, write)


def _flipped(data: bytes, seed: int) -> bytes:
    changed, source = bytearray(data), random.Random(seed)
    for _ in range(4):
        changed[source.randrange(min(len(data), 2000))] = source.randrange(256)
    return bytes(changed)


def _mistyped(
    content: Any, values: tuple[Any, ...], write: Callable[[Path, Any], object]
) -> Iterator[Damage]:
    """Yield one damage for each value at each place of a JSON document."""
    for place in _places(content):
        for value in values:
            said = "is deleted" if value is DELETED else f"is {value!r}"

            def do(path: Path, place: tuple[Any, ...] = place, value: Any = value) -> None:
                changed = json.loads(json.dumps(content))
                parent = changed
                for key in place[:-1]:
                    parent = parent[key]
                if value is DELETED:
                    del parent[place[-1]]
                else:
                    parent[place[-1]] = value
                write(path, changed)

            yield f"{'/'.join(map(str, place))} {said}", do


def _places(content: Any, prefix: tuple[Any, ...] = (), most: int = 40) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value, of long objects and lists only the first ones."""
    items = list(content.items())[:most] if isinstance(content, dict) else list(enumerate(content))[:2]
    for key, value in items:
        yield (*prefix, key)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*prefix, key), most)
