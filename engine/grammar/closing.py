"""End JSON before `max_tokens` does: near the limit, only the token on a short way to the end is allowed.

    left   text so far                              a short way to the end     allowed
      20   {"title": "Silver Harbor Harbor             "  }  <end>      3       as the grammar says
      19   {"title": "Silver Harbor Harbor Harbor      "  }  <end>      3       "
      18   {"title": "Silver Harbor Harbor Harbor"     }  <end>         2       }

JSON that is cut off is of no use to a reader, and a small model repeats itself in a string without end. A model that
ends by itself is not touched: the way is taken in the last moment, when it and `MARGIN` tokens are just left.

The way is greedy: end of sequence, else a quote inside a string, else a closing bracket, else a quote, else the longest
allowed token that is not whitespace. Where it leads nowhere (many required properties, a pattern such as
`[a-z]+-[0-9]`), the output is cut off as before.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from engine.core.grammar_protocol import Grammar
from engine.grammar.vocabulary import Vocabulary, pack_bits
from engine.sampling_params import SamplingParams

WINDOW = 64
"""Tokens before the limit from which on ways are looked for."""
MARGIN = 16
"""Tokens to spare: the next one may open what takes a few more to close."""
CLOSING, QUOTING = frozenset(b"}]"), frozenset(b'}]"')


class Closer:
    """Finds ways to the end for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _order(self) -> np.ndarray:
        """Return int64 [V]: all tokens, the one to prefer first."""
        eos = self._vocabulary.eos_token_ids

        def rank(token_id: int) -> tuple[int, int, bool]:
            spelled = self._vocabulary.token_bytes[token_id]
            if token_id in eos:
                return 0, 0, False
            if not spelled:
                return 9, 0, False
            letters = set(spelled)
            num_opened = spelled.count(b"{") + spelled.count(b"[")
            if num_opened:
                return 4, 100 * num_opened + len(spelled), False
            group = (
                1 if letters <= CLOSING else 2 if letters <= QUOTING else 5 if spelled[:1].isspace() else 3
            )
            return group, -len(spelled), not spelled.isalnum()  # a digit before a minus

        return np.array(sorted(range(len(self._vocabulary)), key=rank), np.int64)

    @cached_property
    def _letters(self) -> np.ndarray | None:
        """Return the tokens of a quote and of what is allowed beside it only inside a string."""
        spelled = self._vocabulary.token_bytes
        single = [spelled.index(text) for text in (b'"', b"}", b":") if text in spelled]
        return np.array(single, np.int64) if len(single) == 3 else None

    def narrow(self, grammar: Grammar, words: np.ndarray, left: int) -> None:
        """Keep only one token of the mask if the output just has the time to end. left: tokens up to the limit."""
        if left > WINDOW or grammar.is_terminated():
            return
        way = self._way(grammar, words, left)
        if way is not None and left - len(way) <= MARGIN:
            words[:] = pack_bits(len(self._vocabulary), np.array(way[:1], np.int64))

    def _way(self, grammar: Grammar, words: np.ndarray, most: int) -> list[int] | None:
        """Return tokens that end the output, None if it takes more than `most`."""
        way: list[int] = []
        allowed = words.copy()
        try:
            while len(way) < most:
                bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: len(self._vocabulary)]
                token_id = self._preferred(bits)
                if not bits[token_id] or not grammar.accept_tokens([token_id]):
                    return None
                way.append(token_id)
                if grammar.is_terminated():
                    return way
                grammar.fill_bitmask(allowed)
            return None
        finally:
            grammar.rollback(len(way))

    def _preferred(self, allowed: np.ndarray) -> int:
        """Return the allowed token that probably leads to the end soonest."""
        if self._letters is not None and allowed[self._letters].all():
            return int(self._letters[0])
        return int(self._order[allowed[self._order].argmax()])


def may_close(params: SamplingParams) -> bool:
    """Whether an output is JSON and nothing else forbids the tokens on the way."""
    structure = params.structured_outputs
    if structure is None or structure.kind not in ("json", "json_object"):
        return False
    return not (params.min_tokens or params.bad_words or params.logit_bias or params.allowed_token_ids)
