"""Stop strings, and token ids to text as they arrive, without partial characters or partial stop strings.

Source of the behaviour: vLLM v1/engine/detokenizer.py, which decodes a sliding window and compares strings. Here each
token's bytes go into an incremental UTF-8 decoder: constant work per token, and the pieces always add up to the whole
text. Tokens are therefore decoded lazily, when the text is read or searched for a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from io import StringIO

from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams

_LONGEST_CHARACTER = 4  # bytes in UTF-8


class Detokenizer:
    """Incremental decoder of the text that follows a prompt.

    Bytes wait inside the UTF-8 decoder until their character is complete:

        tokens    "caf"   C3      A9      E4 BD    20
        push ->   "caf"   ""      "é"     ""       "� "      the character never came: one U+FFFD

    A character that the prompt begins and the output completes belongs to the output.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        tail = self._last_bytes(prompt_token_ids)
        self._utf8.decode(tail)
        self._is_at_start = not tail
        self._holds_prompt_bytes = bool(self._utf8.getstate()[0])

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens; return the characters they complete."""
        piece = b"".join(map(self._bytes_of, token_ids))
        if not piece:
            return ""
        if self._holds_prompt_bytes:
            self._holds_prompt_bytes = False
            if piece[0] & 0b1100_0000 != 0b1000_0000:  # not a UTF-8 continuation byte
                self._utf8.reset()  # an unfinished character of the prompt stays with the prompt
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """End the text: return U+FFFD for an unfinished character, else an empty string."""
        return "" if self._holds_prompt_bytes else self._utf8.decode(b"", final=True)

    def _bytes_of(self, token_id: int) -> bytes:
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return b""
        piece = self._tokenizer.token_bytes(token_id)
        if piece and self._is_at_start:
            self._is_at_start = False
            return self._tokenizer.bytes_at_start(token_id)
        return piece

    def _last_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Return at least the bytes of the prompt's last character; empty if the prompt has no text."""
        tail = b""
        for token_id in reversed(token_ids):
            if len(tail) >= _LONGEST_CHARACTER:
                break
            if not (self._skip_special_tokens and self._tokenizer.is_special(token_id)):
                tail = self._tokenizer.token_bytes(token_id) + tail
        return tail


class OutputText:
    """The text of one completion as it grows, cut at the first stop string.

    Text that may begin a stop string is held back, so that a stream never shows text that is missing in the final
    output. With stop=["</s>"]:

        known      Hello wor ld</
                   released |held: at most the longest stop string's length - 1 characters

    The stop string that ends first wins, as if characters arrived one by one; of two that end at
    the same character, the longer.
    """

    def __init__(self, detokenizer: Detokenizer, params: SamplingParams) -> None:
        self.stop_string: str | None = None  # Stop string that was found; nothing may be pushed after it
        self._detokenizer = detokenizer
        self._stop = params.stop or []
        self._max_held = max((len(stop) - 1 for stop in self._stop), default=0)
        self._keep_stop_string = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._unread: list[int] = []  # Tokens that are not decoded yet; always empty with stop strings
        self._released = StringIO()
        self._num_taken = 0
        self._held = ""

    @property
    def text(self) -> str:
        """Text released so far."""
        self._decode_unread()
        return self._released.getvalue()

    def take(self) -> str:
        """Return the text released since the last call."""
        self._decode_unread()
        self._released.seek(self._num_taken)
        fresh = self._released.read()
        self._num_taken += len(fresh)
        return fresh

    def push(self, token_ids: Sequence[int]) -> int:
        """Add sampled tokens; return how many of them come before the end of a stop string.

        Stop strings have no effect before `min_tokens` tokens, like end-of-sequence.
        """
        if not self._stop:
            self._unread += token_ids
            return len(token_ids)
        for count, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            searched = len(self._held)
            self._held += self._detokenizer.push([token_id])
            if self._num_tokens > self._min_tokens and self._find_stop_string(searched):
                return count
            num_safe = max(0, len(self._held) - self._max_held)
            self._released.write(self._held[:num_safe])
            self._held = self._held[num_safe:]
        return len(token_ids)

    def _decode_unread(self) -> None:
        if self._unread:
            self._released.write(self._detokenizer.push(self._unread))
            self._unread = []

    def close(self) -> None:
        """End the text: release everything that is held back."""
        self._decode_unread()
        self._released.write(self._held)
        if self.stop_string is None:
            self._released.write(self._detokenizer.flush())
        self._held = ""

    def _find_stop_string(self, searched: int) -> bool:
        """Find a stop string that ends after the first `searched` held characters; cut the text there."""
        places = [(self._held.find(stop, max(0, searched - len(stop) + 1)), stop) for stop in self._stop]
        matches = [(start + len(stop), start, stop) for start, stop in places if start >= 0]
        if not matches:
            return False
        end, start, self.stop_string = min(matches)
        self._held = self._held[: end if self._keep_stop_string else start]
        return True
