"""Text that arrives in pieces, read one character at a time by generators that wait for more.

A grammar is written as a recursive descent: `yield from source.peek()` returns the next character, "" at the end of the
text, and suspends the whole descent while there is none. Each character is read once, however the text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

Waiting = Generator[None, None, None]
SPACE = " \t\n\r"


class Malformed(Exception):
    """The text is not a call. The wrong character is the next one to read."""


@dataclass(frozen=True)
class Piece:
    """A part of an answer, in order: content, or a call as name, arguments, end.

    broken: the call that has begun, if one has, is not a call; `text` is all of its text.
    """

    kind: Literal["content", "name", "arguments", "end", "broken"]
    text: str = ""


class Source:
    """The text and the position of the reader, and the pieces that were read so far."""

    def __init__(self) -> None:
        self.text, self.position, self.is_ended = "", 0, False
        self.pieces: list[Piece] = []
        self.last_content = ""
        """Last character of the content so far."""
        self._marked: list[str] = []
        self._mark = 0
        self._tapped: list[str] | None = None
        self._tap = 0
        self._is_live = False

    def feed(self, text: str) -> None:
        """Add a piece of text. The reader has read all of the text so far."""
        self._marked.append(self.text[self._mark :])
        self._keep_tapped(len(self.text))
        self.text, self.position, self._mark, self._tap = text, 0, 0, 0

    def peek(self) -> Generator[None, None, str]:
        """Return the next character without reading it; "" at the end of the text."""
        while self.position == len(self.text):
            if self.is_ended:
                return ""
            self.flush()
            yield
        return self.text[self.position]

    def skip(self, characters: str = SPACE) -> Waiting:
        """Read while the next character is one of these."""
        while (character := (yield from self.peek())) and character in characters:
            self.position += 1

    def expect(self, text: str) -> Waiting:
        """Read exactly this text. Raises Malformed at the first other character."""
        for character in text:
            if (yield from self.peek()) != character:
                raise Malformed
            self.position += 1

    def until(self, start: re.Pattern[str]) -> Generator[None, None, str]:
        """Add text to the content up to one of these characters and return it unread; "" at the end of the text."""
        while (yield from self.peek()):
            match = start.search(self.text, self.position)
            end = match.start() if match else len(self.text)
            self.content(self.text[self.position : end])
            self.position = end
            if match:
                return match[0]
        return ""

    def content(self, text: str) -> None:
        if text:
            self.pieces.append(Piece("content", text))
            self.last_content = text[-1]

    def mark(self) -> None:
        """Remember this position as the beginning of a possible call."""
        self._marked, self._mark = [], self.position

    def broken(self) -> None:
        """Return the text since the mark to the content."""
        self._tapped = None
        text = "".join(self._marked) + self.text[self._mark : self.position]
        if text:
            self.pieces.append(Piece("broken", text))
            self.last_content = text[-1]

    def begin_call(self, name: str) -> None:
        self.pieces.append(Piece("name", name))

    def arguments(self, text: str) -> None:
        if text:
            self.pieces.append(Piece("arguments", text))

    def end_call(self, rest: str) -> None:
        """End a call with the rest of its arguments, which tells a reader of the stream that the call is complete."""
        self.arguments(rest)
        self.pieces.append(Piece("end"))
        self.mark()

    def tap(self, name: str | None) -> None:
        """Collect the text from here on; begin a call whose name is known, so that `flush` makes arguments of it."""
        self._tapped, self._tap, self._is_live = [], self.position, name is not None
        if name is not None:
            self.begin_call(name)

    def flush(self) -> None:
        """Add the collected text to the arguments of the call that has begun."""
        if self._tapped is not None and self._is_live:
            self._keep_tapped(self.position)
            self.arguments("".join(self._tapped))
            self._tapped = []

    def untap(self, without: int) -> str:
        """Stop collecting; return the text without its last characters, of which none has been flushed."""
        assert self._tapped is not None
        self._keep_tapped(self.position - without)
        text, self._tapped = "".join(self._tapped), None
        return text

    def _keep_tapped(self, end: int) -> None:
        if self._tapped is not None:
            self._tapped.append(self.text[self._tap : end])
            self._tap = end
