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
        raise NotImplementedError("write NgramDrafter")

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text: the prompt, later the tokens that a step has added. Any number, also none.

        Costs at most O(max_n) dict operations per token. It keeps no reference to `token_ids`.
        """
        raise NotImplementedError("write extend")

    def propose(self, k: int) -> list[int]:
        """Return up to k drafts: the tokens that follow an earlier occurrence of the text's ending.

        The ending has n tokens, with the largest n from max_n down to min_n for which the last n tokens of the text
        also occur earlier: they start earlier, and may overlap the ending. Of several such places the last one counts,
        or the first one with `first`. Fewer drafts if the text ends before k tokens. [] if no ending occurred before,
        or if k is 0 or less. Drafts are not part of the text: the call changes nothing.

        Costs at most O(max_n - min_n + 1) dict operations and O(k), however long the text is.
        """
        raise NotImplementedError("write propose")
