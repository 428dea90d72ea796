"""Lab streaming-text: from bytes of tokens to the text that a client may see.

The seam is `OutputText` of engine/frontend/detokenizer.py. A byte-level tokenizer gives each token as bytes; a token
may hold half a character, and a stop string may begin in one token and end in another. Sent text cannot be
revoked, and text that is held back makes the stream late.

    tokens   "Hel"   "lo <"   "/s"    ">"           stop ["</s>"]
    push     "Hel"   "lo "    ""      ""            stopped == "</s>"
    tokens   "caf"   C3       A9      " <b"         the same stop
    push     "caf"   ""       "é"     " <b"         "<b" can no longer become "</s>"

vLLM and this engine always hold back as many characters as the longest stop string has, less one. You do better: hold
back only what may still become a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class StreamText:
    """The text of one answer as it grows, cut at the first stop string."""

    def __init__(self, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        """include_stop: the stop string stays in the text. Raises ValueError for an empty stop string."""
        if not all(stop):
            raise ValueError("a stop string must not be empty")
        self._stop = list(stop)
        self._include_stop = include_stop
        self._stopped: str | None = None
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def stopped(self) -> str | None:
        """The stop string that was found, or None."""
        return self._stopped

    def push(self, piece: bytes) -> str:
        """Add the bytes of a token; return the text that can be sent now, as much as possible.

        1. A character is sent when all its bytes are there. Bytes that are no UTF-8 become U+FFFD, as in
           bytes.decode("utf-8", "replace").
        2. Characters that may be the beginning of a stop string are held back, no others.
        3. The stop string that ends first ends the text, as if characters came one by one; of several that end at one
           character, the longest. Text before it is sent; the stop string only with include_stop; what follows never.
        4. After a stop, push returns "".
        """
        return "".join(map(self._take, self._utf8.decode(piece)))

    def _take(self, character: str) -> str:
        """Add a character; return what is safe now."""
        if self._stopped is not None:
            return ""
        self._held += character
        ended = [stop for stop in self._stop if self._held.endswith(stop)]
        if ended:
            self._stopped = max(ended, key=len)
            before = self._held[: len(self._held) - len(self._stopped)]
            return before + self._stopped if self._include_stop else before
        num_safe = len(self._held) - self._num_hopeful()
        safe, self._held = self._held[:num_safe], self._held[num_safe:]
        return safe

    def _num_hopeful(self) -> int:
        """Return how many of the last held characters are the beginning of a stop string."""
        lengths = (
            size for stop in self._stop for size in range(1, len(stop)) if self._held.endswith(stop[:size])
        )
        return max(lengths, default=0)

    def finish(self) -> str:
        """Return the text that was held back when an answer ends without a stop string; U+FFFD for half a character.

        After a stop, and when called again, return "".
        """
        if self._stopped is not None:
            return ""
        rest = "".join(map(self._take, self._utf8.decode(b"", final=True))) + self._held
        self._held = ""
        return rest
