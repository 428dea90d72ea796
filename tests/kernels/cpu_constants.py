"""Sizes of the C++ kernels' tiles and splits, read from their sources: tests take sizes on both sides of each."""

from __future__ import annotations

import re

from kernels.cpu import build
from kernels.cpu.linear import _LANES

DEFINITION = re.compile(r"^constexpr (?:int|int64_t) (\w+) = ([^;]+);", re.MULTILINE)
KNOWN = {"LANES": _LANES, "VECTOR_REGISTERS": 32 if _LANES == 16 else 16}


def constant(source: str, name: str) -> int:
    """The value of a constant of one source, such as `1 << 14` or `A == 32 ? 4 : 2`."""
    text = dict(DEFINITION.findall((build.SOURCES / source).read_text()))[name]
    if chosen := re.fullmatch(r"(.+) \? (.+) : (.+)", text):
        text = "({1}) if ({0}) else ({2})".format(*chosen.groups())
    return int(eval(text, {}, KNOWN))


def around(source: str, name: str) -> tuple[int, int, int, int]:
    """Sizes one below, at and one above a constant, and beyond twice its value."""
    size = constant(source, name)
    return size - 1, size, size + 1, 2 * size + 1
