"""Two other prefix look-ups, to compare with the engine's chain of block hashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class WholePromptCache:
    """One entry per prompt, found by the whole prompt."""

    def __init__(self) -> None:
        self._known: set[tuple[int, ...]] = set()

    def hit(self, prompt: Sequence[int]) -> int:
        """Return the tokens found in the cache, and add the prompt."""
        key = tuple(prompt)
        found = len(prompt) - 1 if key in self._known else 0
        self._known.add(key)
        return found


class TokenTree:
    """A trie over single tokens: the longest known prefix to the token, as SGLang's radix tree finds it (page size 1).

    A radix tree stores runs of tokens per edge to save memory and finds the same.
    """

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}

    def hit(self, prompt: Sequence[int]) -> int:
        """Return the length of the longest known prefix, at most all tokens but the last."""
        node, depth = self._root, 0
        for token in prompt[:-1]:
            if token not in node:
                break
            node, depth = node[token], depth + 1
        return depth

    def add(self, tokens: Sequence[int]) -> None:
        node = self._root
        for token in tokens:
            node = node.setdefault(token, {})
