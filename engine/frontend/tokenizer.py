"""The tokenizer of a model folder: text to token ids and back.

Reads the files that Hugging Face models come with (tokenizer.json, tokenizer_config.json, chat
templates) with the `tokenizers` library alone: importing transformers for this would cost seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from engine.config import ConfigError
from engine.frontend.chat_template import ChatMessage, ChatTemplateError, render_chat
from prep_common.text import counted, shown

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LONG_TEXT = 10_000
"""Characters that take about 10 ms to tokenise."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenizerError(ConfigError):
    """A tokenizer that is missing, broken or not supported."""


@dataclass(frozen=True)
class TokenBytes:
    """The rule that turns a token's string into bytes; text is their concatenation, decoded as UTF-8.

    tokenizer.json describes decoding as a chain of decoders over the whole sequence. For the tokenizers of language
    models that chain is one rule per token: text then grows token by token without decoding twice.

    Two families are in use:

        byte-level BPE (GPT-2, Llama 3, Qwen)   each character stands for one byte: "Ġ" is 0x20
        sentencepiece style (Llama 2, Mistral)  "▁" is a space, "<0xE4>" is a byte, the rest is UTF-8
    """

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    stripped: str = ""  # Character that is dropped at the start of a text
    strip_limit: float = 0  # How many of them are dropped at most
    separator: str = ""  # Prefix of every token but the first

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


class Tokenizer:
    """Text to ids with the library, ids to text by each token's bytes."""

    def __init__(
        self,
        backend: Backend,
        *,
        named_tokens: dict[str, str] | None = None,
        chat_templates: dict[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self.named_tokens = named_tokens or {}
        """bos_token, eos_token, ...: names that a chat template may use."""
        self.chat_templates = chat_templates or {}  # Chat templates by name; most models have only "default"
        backend.no_padding()
        backend.no_truncation()
        # The decoder's pickled state is its entry in tokenizer.json; `to_str` would write the whole vocabulary.
        decoder = backend.decoder and json.loads(backend.decoder.__getstate__())
        self._rule = TokenBytes.from_decoder(decoder)
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special_ids = {token_id for token_id, token in added.items() if token.special}
        named = (self._named_id(name) for name in self.named_tokens)
        self._special_ids |= {token_id for token_id in named if token_id is not None}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read a model folder. Raises TokenizerError if files are missing or broken."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(
                f"no tokenizer.json in {folder}; save one there with transformers' save_pretrained, give "
                "another folder as tokenizer=..., or work with token ids alone: skip_tokenizer_init=True"
            )
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exceptions
            raise TokenizerError(
                f"{path} is not a tokenizer the tokenizers library can read: {error}"
            ) from error
        config = _read_json(folder / "tokenizer_config.json")
        named = {**_read_json(folder / "special_tokens_map.json"), **config}
        try:
            return cls(
                backend, named_tokens=_named_tokens(named), chat_templates=_chat_templates(folder, config)
            )
        except TokenizerError as error:
            raise TokenizerError(f"{folder}: {error}") from None

    # Text to ids

    @cached_property
    def max_chars_per_token(self) -> int:
        return max(map(len, self.backend.get_vocab()))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, with the beginning-of-sequence token if the model uses one.

        Raises ValueError for text that is not Unicode.
        """
        try:
            if len(text) > LONG_TEXT:  # without the interpreter lock, so that other threads go on
                return self.backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            raise ValueError("the text is not Unicode: it holds half of a surrogate pair") from None

    def render_chat(
        self, messages: Sequence[ChatMessage], *, chat_template: str | None = None, **options: Any
    ) -> str:
        """Render a conversation as the text that the model continues; `options` as in `chat_template.render_chat`."""
        template = self._chat_template(chat_template, with_tools=bool(options.get("tools")))
        return render_chat(template, messages, **{**self.named_tokens, **options})

    def _chat_template(self, chosen: str | None, *, with_tools: bool) -> str:
        if chosen is not None:
            if not isinstance(chosen, str):
                raise ChatTemplateError(
                    f"chat_template must be the text or the name of a template, got {chosen!r}"
                )
            return self.chat_templates.get(chosen, chosen)
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self.chat_templates:
                return self.chat_templates[name]
        raise ChatTemplateError(
            "this model has no chat template; give one as chat_template=..., or use generate with plain text"
            if not self.chat_templates
            else f"choose chat_template=... from {sorted(self.chat_templates)}: this model has no default one"
        )

    # Ids to text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token in the middle of a text; empty for a padding id."""
        known = self._bytes.get(token_id)
        if known is None:
            is_added = token_id in self._added
            token = self._added[token_id] if is_added else None
            if not is_added and 0 <= token_id < 2**32:
                token = self.backend.id_to_token(token_id)
            known = b"" if token is None else self._rule.of_token(token, is_added=is_added)
            self._bytes[token_id] = known
        return known

    def bytes_at_start(self, token_id: int) -> bytes:
        """Return the bytes of a token at the start of a text."""
        return self._rule.at_start(self.token_bytes(token_id))

    def token_text(self, token_id: int) -> str:
        """Return the text of a single token for display; partial characters become U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of a sequence."""
        text = bytearray()
        is_at_start = True
        for token_id in token_ids:
            if skip_special_tokens and self.is_special(token_id):
                continue
            text += self.bytes_at_start(token_id) if is_at_start else self.token_bytes(token_id)
            is_at_start &= not self.token_bytes(token_id)
        return text.decode(errors="replace")

    # Facts

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included. The model's vocabulary may be padded beyond it."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._named_id("eos_token")

    def _named_id(self, name: str) -> int | None:
        token = self.named_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)

    def __repr__(self) -> str:
        return f"Tokenizer({counted(self.vocab_size, 'token')}, {', '.join(self.chat_templates) or 'no'} chat template)"


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TokenizerError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}; fetch it again") from error
    if not isinstance(content, dict):
        raise TokenizerError(
            f"{path} must hold a JSON object, not a {type(content).__name__}; fetch it again"
        )
    return content


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Return a special token, which is written as a string or as {"content": ...}."""
    named = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            named[name] = token
    return named


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return chat templates by name. Separate files override those in tokenizer_config.json."""
    inline = config.get("chat_template") or {}
    if isinstance(inline, str):
        inline = {"default": inline}
    elif isinstance(inline, list) and all(isinstance(entry, dict) for entry in inline):
        inline = {entry.get("name"): entry.get("template") for entry in inline}
    if not isinstance(inline, dict) or not all(
        isinstance(text, str) for pair in inline.items() for text in pair
    ):
        raise TokenizerError(
            "chat_template in tokenizer_config.json must be a text, or a list of objects with name and template, got "
            f"{shown(config['chat_template'])}; fetch the file again"
        )
    files = {path.stem: path for path in folder.glob("additional_chat_templates/*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    try:
        return inline | {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"a chat template cannot be read: {error}; fetch it again") from error
