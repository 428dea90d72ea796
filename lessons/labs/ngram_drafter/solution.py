"""Solution of lab ngram-drafter. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections.abc import Sequence


class NgramDrafter:
    def __init__(self, min_n: int, max_n: int, first: bool = False) -> None:
        if not 1 <= min_n <= max_n:
            raise ValueError(f"1 <= min_n <= max_n must hold, got min_n {min_n}, max_n {max_n}")
        self._sizes = range(min_n, max_n + 1)
        self._first = first
        self._text: list[int] = []
        self._followers: dict[tuple[int, ...], int] = {}
        """N-gram -> index of the token after it, at its first or last occurrence that has a token after it."""

    def extend(self, token_ids: Sequence[int]) -> None:
        text, followers = self._text, self._followers
        for token in token_ids:
            end = len(text)
            for size in self._sizes:
                if size > end:
                    break
                ngram = tuple(text[end - size :])
                if not self._first or ngram not in followers:
                    followers[ngram] = end
            text.append(token)

    def propose(self, k: int) -> list[int]:
        text = self._text
        for size in reversed(self._sizes):
            start = self._followers.get(tuple(text[-size:]), 0) if k > 0 and size < len(text) else 0
            if start:
                return text[start : start + k]
        return []
