"""Lab ngram-drafter: propose the tokens that followed when the text's ending occurred before.

The seam is engine/spec: a drafter (base.py) proposes up to k tokens after every step, and the target keeps those that
agree with its own. ngram.py searches the whole text in every step. You keep an index, so that a step costs the same
after 1,000 tokens and after 100,000.

    ... the order 47 is packed . ... the order 47 is shipped . ... what about the order 47
                                     `----------'    max_n = 3                `----------'
                 drafts: is shipped .                "the order 47" occurred twice: the last time counts

Prompt lookup decoding (Saxena 2023); vLLM v1/spec_decode/ngram_proposer.py. vLLM takes the first occurrence of the
longest ending, this engine the last. Your class does both.
"""

from __future__ import annotations

from collections.abc import Sequence


class NgramDrafter:
    """The text of one request, indexed by its n-grams."""

    def __init__(self, min_n: int, max_n: int, first: bool = False) -> None:
        """Look up endings of max_n down to min_n tokens. first: take the first occurrence, as vLLM does, not the last.

        Raises ValueError unless 1 <= min_n <= max_n.
        """
        if not 1 <= min_n <= max_n:
            raise ValueError(f"1 <= min_n <= max_n must hold, got min_n {min_n}, max_n {max_n}")
        self._sizes = range(min_n, max_n + 1)
        self._first = first
        self._text: list[int] = []
        self._followers: dict[tuple[int, ...], int] = {}
        """N-gram -> index of the token after it, at its first or last occurrence that has a token after it."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text: the prompt, later the tokens that a step has added. Any number, also none.

        Costs at most O(max_n) dict operations per token. It keeps no reference to `token_ids`.
        """
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
        """Return up to k drafts: the tokens that follow an earlier occurrence of the text's ending.

        The ending has n tokens, with the largest n from max_n down to min_n for which the last n tokens of the text
        also occur earlier: they start earlier, and may overlap the ending. Of several such places the last one counts,
        or the first one with `first`. Fewer drafts if the text ends before k tokens. [] if no ending occurred before,
        or if k is 0 or less. Drafts are not part of the text: the call changes nothing.

        Costs at most O(max_n - min_n + 1) dict operations and O(k), however long the text is.
        """
        text = self._text
        for size in reversed(self._sizes):
            start = self._followers.get(tuple(text[-size:]), 0) if k > 0 and size < len(text) else 0
            if start:
                return text[start : start + k]
        return []
