"""Measure the cost and the benefit of grammars.

Cost: time to compile, and time per mask along random outputs, for new and for repeated outputs, with
each backend. Both backends follow the same outputs.

Benefit: the share of a model's outputs that are valid without and with the schema, and that were cut off;
and the share of questions needing a tool that get a call that parses, by `tool_choice`.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from app.bench.timing import Tell, partial_results
from engine import LLM, SamplingParams
from engine.config import EngineArgs, StructuredOutputsConfig
from engine.core.grammar_protocol import CompiledGrammar
from engine.frontend.llm_engine import load_tokenizer
from engine.grammar.manager import GrammarCompiler
from engine.grammar.vocabulary import Vocabulary
from engine.grammar.xgrammar_backend import is_installed
from engine.sampling_params import StructuredOutputsParams
from engine.zoo.dialogue import TOOLS

ORDER = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "copies": {"type": "integer", "minimum": 1, "maximum": 99},
        "gift": {"type": "boolean"},
    },
    "required": ["title", "copies"],
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "regex: a date": {"regex": "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"},
    "choice of 3": {"choice": ["packed", "shipped", "delivered"]},
    "JSON: an order": {"json": ORDER, "disable_any_whitespace": True},
    "JSON: a list of orders": {
        "json": {"type": "array", "items": ORDER, "maxItems": 5},
        "disable_any_whitespace": True,
    },
    "JSON: any object": {"json_object": True, "disable_any_whitespace": True},
}
QUESTIONS = ("Where is my order {n}?", "What is the status of order {n}?", "注文{n}を調べてください。")


@dataclass(frozen=True)
class GrammarCost:
    """One grammar in one backend."""

    grammar: str
    backend: str
    compile_ms: float
    new_mask_us: float
    """Mean time per mask along outputs new to this compiled grammar."""
    known_mask_us: float
    """Mean time per mask along the same outputs again."""
    num_masks: int


@dataclass(frozen=True)
class Validity:
    """Shares of outputs, 0 to 1."""

    name: str
    valid: float
    cut_off: float
    """Share ended by max_tokens."""


@dataclass
class GrammarReport:
    model: str
    vocab_size: int
    temperature: float
    costs: list[GrammarCost] = field(default_factory=list)
    validity: list[Validity] = field(default_factory=list)
    interrupted: bool = False


def measure(
    tell: Tell, model: str, *, vocab_size: int | None, outputs: int, temperature: float
) -> GrammarReport:
    """Measure. vocab_size: enlarge the vocabulary to this with joined tokens, for the cost of a large one."""
    vocabulary = make_vocabulary(model, vocab_size)
    report = GrammarReport(model, len(vocabulary), temperature)
    with partial_results(report):
        for name, structure in GRAMMARS.items():
            tell(f"compiling and masking {name}")
            report.costs += _costs(name, StructuredOutputsParams(**structure), vocabulary)
        if vocab_size is None and outputs:
            report.validity = _validity(tell, model, outputs, temperature)
    return report


def make_vocabulary(model: str, size: int | None) -> Vocabulary:
    """Return the model's tokens and, up to `size`, pairs of them, as from a tokenizer with more merges."""
    tokenizer = load_tokenizer(EngineArgs(model=model))
    assert tokenizer is not None and tokenizer.eos_token_id is not None
    vocabulary = Vocabulary.of(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    rng = random.Random(0)
    words = [token for token in vocabulary.token_bytes if token]
    while size is not None and len(vocabulary) < size:
        vocabulary.token_bytes.append(rng.choice(words) + rng.choice(words))
    return vocabulary


def _costs(name: str, params: StructuredOutputsParams, vocabulary: Vocabulary) -> list[GrammarCost]:
    _ = vocabulary.trie  # made once per engine
    compilers = {
        backend: GrammarCompiler(vocabulary, StructuredOutputsConfig(backend))
        for backend in ("dfa", "xgrammar")
        if backend == "dfa" or is_installed()
    }
    paths: list[list[int]] | None = None
    costs = []
    for backend, compiler in compilers.items():
        compiler.compile(StructuredOutputsParams(regex="a"))  # loads the library
        began = perf_counter()
        compiled = compiler.compile(params)
        compile_s = perf_counter() - began
        if paths is None:
            paths = _random_outputs(compiler.compile(params), vocabulary)
        new, known = _mask_times(compiled, vocabulary, paths), _mask_times(compiled, vocabulary, paths)
        new_us, known_us = 1e6 * statistics.fmean(new), 1e6 * statistics.fmean(known)
        costs.append(GrammarCost(name, backend, 1e3 * compile_s, new_us, known_us, len(new)))
    return costs


def _random_outputs(compiled: CompiledGrammar, vocabulary: Vocabulary) -> list[list[int]]:
    """Return ten outputs of up to 40 tokens; closing quotes and brackets are preferred so that they end."""
    rng, words = random.Random(0), np.zeros(vocabulary.num_words, np.int32)
    paths = []
    for _ in range(10):
        grammar = compiled.start()
        path: list[int] = []
        while len(path) < 40 and not grammar.is_terminated():
            grammar.fill_bitmask(words)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
            plain = [t for t in allowed if vocabulary.token_bytes[t].isascii()] or allowed
            closing = [t for t in plain if vocabulary.token_bytes[t] in (b'"', b"}", b"]", b"")]
            path.append(rng.choice(closing if closing and rng.random() < 0.3 else plain))
            grammar.accept_tokens(path[-1:])
        paths.append(path)
    return paths


def _mask_times(compiled: CompiledGrammar, vocabulary: Vocabulary, paths: list[list[int]]) -> list[float]:
    words, times = np.zeros(vocabulary.num_words, np.int32), []
    for path in paths:
        grammar = compiled.start()
        for token_id in path:
            began = perf_counter()
            grammar.fill_bitmask(words)
            times.append(perf_counter() - began)
            if not grammar.accept_tokens([token_id]):
                break  # the library knows fewer tokens that begin inside a character
    return times


def _validity(tell: Tell, model: str, outputs: int, temperature: float) -> list[Validity]:
    def sampling(max_tokens: int, structure: StructuredOutputsParams | None = None) -> list[SamplingParams]:
        settings: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "structured_outputs": structure,
        }
        return [SamplingParams(seed=seed, **settings) for seed in range(outputs)]

    rows = []
    masked = StructuredOutputsParams(**GRAMMARS["JSON: an order"])
    with LLM(model) as llm:
        for name, structure in (("JSON, free", None), ("JSON, masked", masked)):
            tell(name)
            prompts = ['Order as JSON, like {"title": "Fuji", "copies": 2}: '] * outputs
            answers = llm.generate(prompts, sampling(80, structure), use_tqdm=False)
            rows.append(_share(name, answers, lambda completion: _is_order(completion.text)))
        questions = [QUESTIONS[seed % len(QUESTIONS)].format(n=10000 + seed) for seed in range(outputs)]
        conversations = [[{"role": "user", "content": question}] for question in questions]
        for choice in ("none", "auto", "required"):
            tell(f"tool_choice={choice}")
            answers = llm.chat(conversations, sampling(60), tools=TOOLS, tool_choice=choice, use_tqdm=False)
            rows.append(_share(f"tool_choice={choice}", answers, _calls_known_tools))
    return rows


def _share(name: str, answers: list[Any], is_valid: Callable[[Any], bool]) -> Validity:
    completions = [answer.outputs[0] for answer in answers]
    valid = statistics.fmean(is_valid(completion) for completion in completions)
    return Validity(
        name, valid, statistics.fmean(completion.finish_reason == "length" for completion in completions)
    )


def _is_order(text: str) -> bool:
    try:
        order = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(order, dict)
        and isinstance(order.get("title"), str)
        and isinstance(order.get("copies"), int)
        and 1 <= order["copies"] <= 99
    )


def _calls_known_tools(completion: Any) -> bool:
    """Return whether there are calls, and each names a tool and has exactly its required arguments."""
    required = {tool["function"]["name"]: set(tool["function"]["parameters"]["required"]) for tool in TOOLS}
    calls = [call["function"] for call in completion.tool_calls or []]
    return bool(calls) and all(
        set(json.loads(call["arguments"])) == required.get(call["name"]) for call in calls
    )
