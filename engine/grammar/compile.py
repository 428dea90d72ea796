"""Compile structured-output parameters to a grammar: choose the backend and its input language.

                    regex, choice     JSON schema                      json_object        grammar, structural_tag
    dfa             exact             exact, without recursion         3 levels deep      refused
    xgrammar        the library's     any depth                        any depth          yes
    auto            dfa               xgrammar if installed, else dfa  as JSON schema     xgrammar

Source: vLLM v1/structured_output/__init__.py and its backends' compile_grammar.
"""

from __future__ import annotations

from engine.config.features import StructuredOutputsConfig
from engine.core.grammar_protocol import CompiledGrammar, GrammarError
from engine.grammar.dfa_backend import CompiledDFA
from engine.grammar.json_schema import ANY_DEPTH, check_keywords, schema_tree
from engine.grammar.regex import Choice, Node, literal, parse
from engine.grammar.vocabulary import Vocabulary
from engine.grammar.xgrammar_backend import XGrammarCompiler, is_installed
from engine.sampling_params import StructuredOutputsParams

NEED_A_STACK = ("grammar", "structural_tag")
NEED_NONE = ("regex", "choice")


class GrammarCompiler:
    """Compiler for one vocabulary. Used by one thread."""

    def __init__(self, vocabulary: Vocabulary, config: StructuredOutputsConfig) -> None:
        self.vocabulary = vocabulary
        self._config = config
        self._xgrammar: XGrammarCompiler | None = None

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Return the compiled grammar. Raises GrammarError."""
        compact = params.disable_any_whitespace or self._config.disable_any_whitespace
        if choose_backend(params.kind, self._config.backend) == "dfa":
            return CompiledDFA(pattern_tree(params, compact=compact), self.vocabulary)
        if params.kind == "json":
            check_keywords(params.json_schema)
        if self._xgrammar is None:
            self._xgrammar = XGrammarCompiler(self.vocabulary)
        return self._xgrammar.compile(params, compact=compact)


def choose_backend(kind: str, asked: str) -> str:
    """Return dfa or xgrammar, by the table above. Raises GrammarError if the chosen one does not support it."""
    if kind in NEED_A_STACK:
        if asked == "dfa":
            raise GrammarError(
                f"{kind} is not a regular language: the backend dfa cannot do it, xgrammar can"
            )
        return "xgrammar"
    if asked != "auto":
        return asked
    return "dfa" if kind in NEED_NONE or not is_installed() else "xgrammar"


def pattern_tree(params: StructuredOutputsParams, *, compact: bool) -> Node:
    """Return an equivalent regular expression."""
    match params.kind:
        case "regex":
            assert params.regex is not None
            return parse(params.regex)
        case "choice":
            assert params.choice is not None
            return Choice(tuple(literal(text) for text in params.choice))
        case "json":
            return schema_tree(params.json_schema, compact=compact)
    return schema_tree({"type": "object"}, compact=compact, any_depth=ANY_DEPTH - 1)
