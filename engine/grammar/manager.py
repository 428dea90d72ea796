r"""Compile grammars and build token masks in threads, in parallel with the engine's steps.

    add_request ---> compile() ---- compile thread ----> Future[CompiledGrammar], which the request carries
                     (one per grammar, kept)

    schedule() ----> build_bitmask() -- mask thread ---> Future[GrammarBitmask] ---+
               \---> executor.execute() .... forward pass .... logits -> [ mask ] -> sample

The backend and its input language:

                    regex, choice     JSON schema                      json_object        grammar, structural_tag
    dfa             yes               without recursion                3 levels deep      refused
    xgrammar        yes               any depth                        any depth          yes
    auto            dfa               xgrammar if installed, else dfa  as JSON schema     xgrammar

Both compile the same pattern, or the same rules of a schema, so that an output that one of them allows is valid in the
same sense as with the other.

Source: vLLM v1/structured_output/__init__.py and its backends' compile_grammar.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from time import perf_counter

import numpy as np

from engine.config.features import StructuredOutputsConfig
from engine.core.grammar_protocol import CompiledGrammar, Grammar, GrammarError
from engine.core.request import Request
from engine.core.sched_output import GrammarBitmask, Scheduled, SchedulerOutput
from engine.grammar.closing import Closer, may_close
from engine.grammar.dfa_backend import CompiledDFA
from engine.grammar.ebnf import ebnf
from engine.grammar.json_schema import ANY_DEPTH, schema_rules, schema_tree
from engine.grammar.regex import Choice, Node, literal, parse
from engine.grammar.rules import ROOT, cleaned
from engine.grammar.schema.layout import Layout
from engine.grammar.vocabulary import Vocabulary
from engine.grammar.xgrammar_backend import XGrammarCompiler, how_to_use, is_installed
from engine.sampling_params import StructuredOutputsParams

logger = logging.getLogger(__name__)

NEED_A_STACK = ("grammar", "structural_tag")
NEED_NONE = ("regex", "choice")
MAX_KEPT_GRAMMARS = 256
MAX_ALTERNATIVES = 10_000
"""Texts of `choice`, and alternatives of a grammar: more take many seconds to compile."""
MAX_CHOICE_CHARACTERS = 150_000
Key = tuple[str, str, bool]


class GrammarManager:
    """Compiled grammars and the threads of an engine. Used by the engine's thread."""

    def __init__(self, config: StructuredOutputsConfig, make_vocabulary: Callable[[], Vocabulary]) -> None:
        """make_vocabulary: called once, in the compile thread, for the first structured request."""
        self.config = config
        self._make_vocabulary = make_vocabulary
        self._compiler: GrammarCompiler | None = None
        self._compile_thread = ThreadPoolExecutor(1, "prep-grammar")
        self._mask_thread = ThreadPoolExecutor(1, "prep-bitmask")
        self._grammars: OrderedDict[Key, Future[CompiledGrammar]] = OrderedDict()
        self._compile_us = 0

    def compile(self, params: StructuredOutputsParams) -> Future[CompiledGrammar]:
        """Return the grammar of these parameters, cached or as a future of the compile thread."""
        key = params.kind, json.dumps(getattr(params, params.kind)), params.disable_any_whitespace
        future = self._grammars.get(key)
        if future is None:
            future = self._grammars[key] = self._compile_thread.submit(self._compile, params)
            if len(self._grammars) > MAX_KEPT_GRAMMARS:
                self._grammars.popitem(last=False)
        self._grammars.move_to_end(key)
        return future

    def _compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        began = perf_counter()
        try:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self._make_vocabulary(), self.config)
            return self._compiler.compile(params)
        finally:
            self._compile_us += round(1e6 * (perf_counter() - began))

    def take_compile_us(self) -> int:
        """Return the microseconds spent on compiling since the last call."""
        spent, self._compile_us = self._compile_us, 0
        return spent

    def wait(self, requests: Iterable[Request], seconds: float) -> None:
        """Wait until one of these requests has its grammar, in a step without other work."""
        wait([r.grammar_future for r in requests if r.grammar_future], seconds, FIRST_COMPLETED)

    def build_bitmask(
        self, out: SchedulerOutput, requests: Mapping[str, Request]
    ) -> Future[GrammarBitmask] | None:
        """Start to build the masks of a step's structured rows; return None if none of them gets a token.

        requests: requests with a grammar, by id.
        """
        rows = []
        for row in out.scheduled:
            request = requests.get(row.request_id)
            if request is None or request.grammar is None:
                continue
            if row.start + row.num_tokens - len(row.spec_token_ids) >= request.num_tokens:
                can_close = self.config.finish_json and may_close(request.sampling_params)
                limit = request.max_num_tokens - request.num_prompt_tokens if can_close else None
                rows.append((row, request.grammar, limit, request.max_num_tokens - request.num_tokens))
        return self._mask_thread.submit(self._fill, rows) if rows else None

    def _fill(self, rows: list[tuple[Scheduled, Grammar, int | None, int]]) -> GrammarBitmask:
        assert self._compiler is not None
        names = [(row.request_id, index) for row, *_ in rows for index in range(1 + len(row.spec_token_ids))]
        result = GrammarBitmask(names, np.zeros((len(names), self._compiler.vocabulary.num_words), np.int32))
        first = 0
        for row, grammar, limit, left in rows:
            lines = result.words[first : first + 1 + len(row.spec_token_ids)]
            first += len(lines)
            try:
                narrow = (
                    None if limit is None else partial(self._compiler.closer.narrow, grammar, limit=limit)
                )
                fill_positions(grammar, row.spec_token_ids, lines, narrow, left)
            except GrammarError as error:
                lines[:] = 0
                result.errors[row.request_id] = f"structured_outputs: {error}"
        return result

    def shutdown(self) -> None:
        self._compile_thread.shutdown(wait=False, cancel_futures=True)
        self._mask_thread.shutdown(wait=False, cancel_futures=True)


def fill_positions(
    grammar: Grammar,
    drafts: list[int],
    words: np.ndarray,
    narrow: Callable[[np.ndarray, int], None] | None = None,
    left: int = 0,
) -> None:
    """Return masks int32 [1 + drafts, W] after a row's newest token and after each draft; keep the grammar's state.

    narrow: called with each mask and the tokens that are left then (`Closer.narrow`).

    After a draft that is not allowed, or that ends the output, all tokens are allowed: they are never used.
    """
    num_accepted = 0
    words[:] = -1
    try:
        grammar.fill_bitmask(words[0])
        if narrow is not None:
            narrow(words[0], left)
        for index, draft in enumerate(drafts, start=1):
            if not grammar.accept_tokens([draft]):
                break
            num_accepted += 1
            if grammar.is_terminated():
                break
            grammar.fill_bitmask(words[index])
            if narrow is not None:
                narrow(words[index], left - index)
    finally:
        grammar.rollback(num_accepted)


class GrammarCompiler:
    """Compiler for one vocabulary. Used by one thread."""

    def __init__(self, vocabulary: Vocabulary, config: StructuredOutputsConfig) -> None:
        self.vocabulary = vocabulary
        self.closer = Closer(vocabulary)
        self._config = config
        self._xgrammar: XGrammarCompiler | None = None

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Return the compiled grammar. Raises GrammarError."""
        config = self._config
        _check_alternatives(params)
        is_compact = params.disable_any_whitespace or config.disable_any_whitespace
        layout = Layout(is_compact, config.max_whitespace, config.max_digits)
        is_closed = config.disable_additional_properties
        if choose_backend(params.kind, config.backend) == "dfa":
            tree = pattern_tree(params, layout, is_closed=is_closed)
            try:
                return CompiledDFA(tree, self.vocabulary)
            except GrammarError as error:
                raise GrammarError(f"the backend dfa cannot compile this {params.kind}: {error}") from error
        if self._xgrammar is None:
            self._xgrammar = XGrammarCompiler(self.vocabulary)
        if params.kind == "structural_tag":
            return self._xgrammar.compile_tag(
                params.structural_tag or "",
                lambda schema: ebnf(schema_rules(schema, layout, is_closed=is_closed)),
            )
        return self._xgrammar.compile(_ebnf(params, layout, is_closed))


def _check_alternatives(params: StructuredOutputsParams) -> None:
    texts, count = params.choice or (), len(params.choice or ())
    if params.kind == "grammar":
        count = (params.grammar or "").count("|") + 1
    if count > MAX_ALTERNATIVES or sum(map(len, texts)) > MAX_CHOICE_CHARACTERS:
        size = f"{count:,} alternative{'s' * (count != 1)}" + (
            f" of {sum(map(len, texts)):,} characters" if texts else ""
        )
        limit = f"{MAX_ALTERNATIVES:,}" + (f" of {MAX_CHOICE_CHARACTERS:,} characters" if texts else "")
        raise GrammarError(f"{params.kind} has {size}, the maximum is {limit}; use fewer or a regex")


def choose_backend(kind: str, asked: str) -> str:
    """Return dfa or xgrammar, by the table above. Raises GrammarError if the chosen one does not support it."""
    if kind in NEED_A_STACK and asked == "dfa":
        raise GrammarError(
            f"{kind} is not a regular language: the backend dfa cannot do it, xgrammar can: {how_to_use()}"
        )
    if kind in NEED_A_STACK:
        return "xgrammar"
    if asked != "auto":
        return asked
    return "dfa" if kind in NEED_NONE or not is_installed() else "xgrammar"


def _ebnf(params: StructuredOutputsParams, layout: Layout, is_closed: bool) -> str:
    """Return an equivalent context-free grammar."""
    match params.kind:
        case "grammar":
            return params.grammar or ""
        case "json":
            return ebnf(schema_rules(params.json_schema, layout, is_closed=is_closed))
        case "json_object":
            return ebnf(schema_rules({"type": "object"}, layout))
    return ebnf(cleaned({ROOT: pattern_tree(params, layout)}))


def pattern_tree(params: StructuredOutputsParams, layout: Layout, *, is_closed: bool = True) -> Node:
    """Return an equivalent regular expression."""
    to_tree = partial(
        schema_tree,
        compact=layout.is_compact,
        max_whitespace=layout.max_whitespace,
        max_digits=layout.max_digits,
    )
    match params.kind:
        case "regex":
            return parse(params.regex or "")
        case "choice":
            return Choice(tuple(map(literal, params.choice or ())))
        case "json":
            return to_tree(params.json_schema, is_closed=is_closed)
    return to_tree({"type": "object"}, any_depth=ANY_DEPTH - 1)
