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

from collections.abc import Sequence


class StreamText:
    """The text of one answer as it grows, cut at the first stop string."""

    def __init__(self, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        """include_stop: the stop string stays in the text. Raises ValueError for an empty stop string."""
        raise NotImplementedError("write StreamText")

    @property
    def stopped(self) -> str | None:
        """The stop string that was found, or None."""
        raise NotImplementedError("write stopped")

    def push(self, piece: bytes) -> str:
        """Add the bytes of a token; return the text that can be sent now, as much as possible.

        1. A character is sent when all its bytes are there. Bytes that are no UTF-8 become U+FFFD, as in
           bytes.decode("utf-8", "replace").
        2. Characters that may be the beginning of a stop string are held back, no others.
        3. The stop string that ends first ends the text, as if characters came one by one; of several that end at one
           character, the longest. Text before it is sent; the stop string only with include_stop; what follows never.
        4. After a stop, push returns "".
        """
        raise NotImplementedError("write push")

    def finish(self) -> str:
        """Return the text that was held back when an answer ends without a stop string; U+FFFD for half a character.

        After a stop, and when called again, return "".
        """
        raise NotImplementedError("write finish")
