"""Finish JSON before `max_tokens` cuts it off (`finish_json`): near the limit, allow only a short way to the end.

    left   text so far                              a short way to the end     allowed
      20   {"title": "Silver Harbor Harbor             "  }  <end>      3       as the grammar says
      19   {"title": "Silver Harbor Harbor Harbor      "  }  <end>      3       "
      18   {"title": "Silver Harbor Harbor Harbor"     }  <end>         2       }

A small model repeats itself in a string without end, and JSON that is cut off cannot be parsed. Off by default, as the
end is then not the model's although finish_reason is "stop". While more than the spare tokens (`spare`) would be left
after the way, the mask is the grammar's.

The way is greedy: end of sequence, else a quote inside a string, else a closing bracket, else a quote, else the longest
allowed token that is not whitespace. Where it leads nowhere (many required properties, a pattern such as
`[a-z]+-[0-9]`), the output is cut off as before. A step computes a mask per token of the way, at most `WINDOW` of them.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from engine.core.grammar_protocol import Grammar, GrammarError
from engine.grammar.vocabulary import Vocabulary, pack_bits
from engine.sampling_params import SamplingParams

WINDOW = 64
"""Tokens before the limit from which on ways are looked for."""
MOST_SPARE = 16
"""Most tokens to spare: the next one may open what takes a few more to close."""
GROUPS = frozenset(b"}]"), frozenset(b'}]"'), frozenset(b':,"')
"""Letters of tokens, those to prefer first: what closes, what ends a string, what goes on instead of an exponent."""


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
                return 5, 100 * num_opened + len(spelled), False
            group = next((n for n, some in enumerate(GROUPS, start=1) if letters <= some), 4)
            if group == 4 and spelled[:1].isspace():
                group = 6
            return group, -len(spelled), not spelled.isalnum()  # a digit before a minus

        return np.array(sorted(range(len(self._vocabulary)), key=rank), np.int64)

    @cached_property
    def _letters(self) -> np.ndarray | None:
        """Return the tokens `"`, `}` and `:`, which only a string allows all at once; None without such tokens."""
        spelled = self._vocabulary.token_bytes
        single = [spelled.index(text) for text in (b'"', b"}", b":") if text in spelled]
        return np.array(single, np.int64) if len(single) == 3 else None

    def narrow(self, grammar: Grammar, words: np.ndarray, left: int, limit: int) -> None:
        """Keep only one token of the mask if the output just has the room to end.

        limit: `max_tokens`. left: tokens of it that are not generated yet.
        """
        if left > WINDOW or grammar.is_terminated():
            return
        try:
            way = self._way(grammar, words, left)
        except GrammarError:  # the way is too large for the backend, the output itself may not be
            return
        if way is not None and left - len(way) <= spare(limit):
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


def spare(limit: int) -> int:
    """Return how many tokens are kept for the way's growth: few of a short output, which is the model's to write."""
    return min(MOST_SPARE, limit // 4)


def may_close(params: SamplingParams) -> bool:
    """Whether an output is JSON and nothing else forbids the tokens on the way."""
    structure = params.structured_outputs
    if structure is None or structure.kind not in ("json", "json_object"):
        return False
    return not (params.min_tokens or params.bad_words or params.logit_bias or params.allowed_token_ids)
