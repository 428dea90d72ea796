"""The bytes of each token; text is their concatenation, decoded as UTF-8.

tokenizer.json describes decoding as a chain of decoders over the whole sequence. For the tokenizers of language models
that chain is one rule per token, which this file extracts: text then grows token by token without decoding twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from engine.config import ConfigError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"


class TokenizerError(ConfigError):
    """A tokenizer that is missing, broken or not supported."""


@dataclass(frozen=True)
class TokenBytes:
    """The rule that turns a token's string into bytes.

    Two families are in use:

        byte-level BPE (GPT-2, Llama 3, Qwen)   each character stands for one byte: "Ġ" is 0x20
        sentencepiece style (Llama 2, Mistral)  "▁" is a space, "<0xE4>" is a byte, the rest is UTF-8
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    stripped: str = ""
    """Character that is dropped at the start of a text, ..."""
    strip_limit: float = 0
    """... up to this many times."""
    separator: str = ""
    """Prefix of every token but the first."""

    @classmethod
    def from_decoder(cls, decoder: dict[str, Any] | None) -> TokenBytes:
        """Read the `decoder` entry of tokenizer.json."""
        if decoder is None:  # the library joins such tokens with spaces
            return cls(separator=" ", stripped=" ", strip_limit=1)
        rule = cls()
        for step in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
            rule = rule._then(step)
        return rule

    def _then(self, step: dict[str, Any]) -> TokenBytes:
        match step:
            case {"type": "ByteLevel"}:
                return replace(self, byte_level=True)
            case {"type": "ByteFallback"}:
                return replace(self, byte_fallback=True)
            case {"type": "Fuse"}:
                return self
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                return replace(self, replacements=(*self.replacements, (old, new)))
            case {"type": "Strip", "content": character, "start": start, "stop": 0}:
                return replace(self, stripped=character, strip_limit=start)
            case {"type": "Metaspace", "replacement": mark, **rest}:
                limit = 0 if rest.get("prepend_scheme") == "never" else inf
                replacements = (*self.replacements, (mark, " "))
                return replace(self, replacements=replacements, stripped=" ", strip_limit=limit)
        raise TokenizerError(
            f"the tokenizer's decoder step {step} does not work token by token; use a tokenizer.json whose "
            "decoder is made of ByteLevel, Metaspace, ByteFallback, Replace (of a string), Fuse and Strip "
            "(at the start)"
        )

    def of_token(self, token: str, *, is_added: bool) -> bytes:
        """Return the bytes of a token in the middle of a text. Added tokens are literal."""
        if self.byte_level and not is_added:
            try:
                return bytes(_BYTE_OF_CHARACTER[character] for character in token)
            except KeyError:  # not of the alphabet: literal
                return token.encode()
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return (self.separator + token).encode()

    def at_start(self, token: bytes) -> bytes:
        """Return the bytes of a token at the start of a text: without the space that marks a word."""
        rest = token.lstrip(self.stripped.encode())
        num_stripped = min(self.strip_limit, len(token) - len(rest))
        return token[int(num_stripped) :]


def _byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's bijection: printable Latin-1 characters map to themselves, other bytes to U+0100 and up."""
    ranges = (("!", "~"), ("¡", "¬"), ("®", "ÿ"))
    printable = [byte for first, last in ranges for byte in range(ord(first), ord(last) + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_level_alphabet()
