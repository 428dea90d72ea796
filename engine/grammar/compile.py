"""From what a caller asked for to a compiled grammar: which backend, and in which language it is told.

Source: vLLM v1/structured_output/__init__.py and its backends' compile_grammar.
"""

from __future__ import annotations

from engine.config.structured_outputs import StructuredOutputsConfig
from engine.core.grammar_iface import CompiledGrammar, GrammarError
from engine.grammar.dfa_backend import CompiledDFA
from engine.grammar.regex import escape
from engine.grammar.vocabulary import Vocabulary
from engine.sampling_params import StructuredOutputsParams

NEED_A_STACK = ("grammar", "structural_tag")


def compile_grammar(
    params: StructuredOutputsParams, vocabulary: Vocabulary, config: StructuredOutputsConfig
) -> CompiledGrammar:
    """Compile for a vocabulary, or raise GrammarError with what is wrong and what to do."""
    return CompiledDFA(pattern_of(params), vocabulary)


def pattern_of(params: StructuredOutputsParams) -> str:
    """The regular expression that says the same."""
    if params.kind == "regex":
        assert params.regex is not None
        return params.regex
    if params.kind == "choice":
        assert params.choice is not None
        return "|".join(escape(text) for text in params.choice)
    raise GrammarError(f"{params.kind} is not supported")
