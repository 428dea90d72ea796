"""Grammar backend xgrammar: a library with a pushdown automaton in C++.

Its grammars are context-free, so JSON of any depth and recursive schemas work. It builds most of a mask once for each
place of a grammar, where a text first reaches it; a step checks only tokens that depend on the stack. It needs
`pip install -e '.[structured]'`. Loading takes seconds and happens in the compile thread, for the first grammar that
needs it.

Sources: Dong et al. 2024, "XGrammar" (sections 3.1 to 3.3); vLLM v1/structured_output/backend_xgrammar.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.core.grammar_protocol import GrammarError
from engine.grammar.vocabulary import Vocabulary, pack_bits

if TYPE_CHECKING:
    import xgrammar


MAX_LITERALS = 80_000
"""Characters of literal texts up to which masks are made on first use. For an automaton of more than about 100,000
states, such as an enum of 10,000 words, the library (0.2.9) needs minutes to prepare that, and a second to make all."""
MAX_RULE = 100_000
"""Characters of the longest rule, likewise."""
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*+)"?|\[(?:[^\]\\]|\\.)*+|#.*')
"""A literal text, a class or a comment. A client's grammar may leave one open: the match then takes the rest, since a
search from each quote to the end would take quadratic time."""


def is_installed() -> bool:
    return find_spec("xgrammar") is not None


def how_to_use() -> str:
    """Return what to do so that this backend compiles a grammar."""
    setting = 'structured_outputs_config={"backend": "auto"}'
    return setting if is_installed() else f"pip install -e '.[structured]', and set {setting}"


class XGrammarCompiler:
    """The library, set up for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not is_installed():
            raise GrammarError(
                "this needs the library xgrammar, which is not installed: pip install -e '.[structured]'"
            )
        import xgrammar

        self._real_tokens = pack_bits(len(vocabulary), np.arange(len(vocabulary)))
        tokenizer = xgrammar.TokenizerInfo(
            vocabulary.token_bytes,
            xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary),
            stop_token_ids=sorted(vocabulary.eos_token_ids),
        )
        self._compilers = [
            xgrammar.GrammarCompiler(
                tokenizer, max_threads=1, cache_enabled=False, enable_dynamic_compilation=is_lazy
            )
            for is_lazy in (False, True)
        ]

    def compile(self, grammar: str) -> CompiledXGrammar:
        """Compile a grammar in EBNF. Raises GrammarError."""
        return self._compiled(self._compilers[is_small(grammar)].compile_grammar, grammar)

    def compile_tag(self, tag: str, grammar_of: Callable[[Any], str]) -> CompiledXGrammar:
        """Compile a structural tag. grammar_of: the grammar of a JSON schema, which stands in for the library's own."""
        text = json.dumps(_with(grammar_of, _read(tag)))
        return self._compiled(self._compilers[len(text) <= MAX_RULE].compile_structural_tag, text)

    def _compiled(self, compile_: Callable[[str], Any], text: str) -> CompiledXGrammar:
        try:
            return CompiledXGrammar(compile_(text), self._real_tokens)
        except Exception as error:  # the library has several, RuntimeError among them
            # "[20:50:14] /project/cpp/file.cc:83: what was wrong": only the last part is for users
            message = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error).strip())
            raise GrammarError(f"xgrammar: {message}") from error


def is_small(grammar: str) -> bool:
    """Whether masks may be made on first use."""
    num_literals = sum(map(len, _LITERAL.findall(grammar)))
    return num_literals <= MAX_LITERALS and max(map(len, grammar.splitlines()), default=0) <= MAX_RULE


def _read(tag: str) -> Any:
    try:
        return json.loads(tag)
    except ValueError as error:
        raise GrammarError(f"structural_tag is not valid JSON: {error}") from error


def _with(grammar_of: Callable[[Any], str], tag: Any) -> Any:
    """Return a structural tag with a grammar for every JSON schema in it."""
    if isinstance(tag, list):
        return [_with(grammar_of, part) for part in tag]
    if not isinstance(tag, dict):
        return tag
    if tag.get("type") == "json_schema" and "json_schema" in tag and tag.get("style", "json") == "json":
        return {"type": "grammar", "grammar": grammar_of(tag["json_schema"])}
    return {name: _with(grammar_of, part) for name, part in tag.items()}


@dataclass(frozen=True)
class CompiledXGrammar:
    """A compiled grammar of the library."""

    compiled: xgrammar.CompiledGrammar
    real_tokens: np.ndarray  # int32 [num_words]: the bits of all tokens

    def start(self) -> XGrammar:
        return XGrammar(self)


class XGrammar:
    """Matcher of one request, behind our protocol."""

    def __init__(self, grammar: CompiledXGrammar) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(grammar.compiled)
        self._real_tokens = grammar.real_tokens

    def accept_tokens(self, token_ids: Sequence[int]) -> bool:
        num_accepted = self._advance(token_ids)
        if num_accepted < len(token_ids):
            self.rollback(num_accepted)
            return False
        return True

    def validate_tokens(self, token_ids: Sequence[int]) -> list[int]:
        num_accepted = self._advance(token_ids)
        self.rollback(num_accepted)
        return list(token_ids[:num_accepted])

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def fill_bitmask(self, words: Any) -> None:
        if self.is_terminated():
            words[:] = 0
        else:
            self._matcher.fill_next_token_bitmask(words.reshape(1, -1), 0)
            words &= self._real_tokens  # the library leaves the bits past the vocabulary set

    def is_terminated(self) -> bool:
        return bool(self._matcher.is_terminated())

    def _advance(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens were accepted before one was not."""
        for index, token_id in enumerate(token_ids):
            if self.is_terminated() or not self._matcher.accept_token(token_id):
                return index
        return len(token_ids)
