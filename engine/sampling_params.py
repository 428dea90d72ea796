"""Sampling parameters of a request: temperature, top-p, stop tokens, stop strings, penalties, logprobs, ...

Names and defaults are vLLM's (vllm/sampling_params.py), so that code written for it runs unchanged. Parameters of
features that this engine does not have are rejected by name, never ignored.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

from prep_common.names import unknown_name
from prep_common.text import shown

GREEDY_BELOW = 1e-5
"""Temperatures below it are greedy: the softmax is one-hot in float32 (vLLM's _SAMPLING_EPS)."""


class RequestOutputKind(Enum):
    """Content of each RequestOutput of a stream."""

    CUMULATIVE = 0
    """All output so far."""
    DELTA = 1
    """Output since the last RequestOutput."""
    FINAL_ONLY = 2
    """One RequestOutput, when the request has finished."""


@dataclass
class StructuredOutputsParams:
    """Constraint on the output: exactly one of the first six fields.

    The names are vLLM's. Wrong values raise a ValueError; patterns that do not compile end the request with an error.
    """

    json: str | dict[str, Any] | None = None
    """JSON schema, as an object or its text, that the output validates against."""
    regex: str | None = None
    """Regular expression that the whole output matches."""
    choice: list[str] | None = None
    """Texts of which the output is one."""
    grammar: str | None = None
    """Context-free grammar in EBNF (GBNF); needs xgrammar."""
    json_object: bool | None = None
    """True: the output is any JSON object."""
    structural_tag: str | None = None
    """Free text with structured parts, as JSON in xgrammar's format; needs xgrammar."""

    disable_any_whitespace: bool = False
    """Allow JSON only without whitespace between its tokens. Not in vLLM, which reads the engine's setting alone."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        _refuse_unknown(cls, kwargs, "structured outputs option")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        given = [name for name in STRUCTURE_KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            said, kinds = " and ".join(given) or "none", ", ".join(STRUCTURE_KINDS)
            raise ValueError(f"structured_outputs takes exactly one of {kinds}; got {said}")
        if not isinstance(value := self.disable_any_whitespace, bool):
            raise ValueError(f"disable_any_whitespace must be True or False, got {shown(value)}")
        getattr(self, f"_check_{self.kind}", self._check_text)()

    @property
    def kind(self) -> str:
        """Name of the field that is set: json, regex, choice, grammar, json_object or structural_tag."""
        return next(name for name in STRUCTURE_KINDS if getattr(self, name) is not None)

    @property
    def json_schema(self) -> Any:
        """`json`, parsed if it is text."""
        return json_module.loads(self.json) if isinstance(self.json, str) else self.json

    def _check_json(self) -> None:
        schema = _parsed("json", self.json) if isinstance(self.json, str) else self.json
        check_depth("json", schema, MAX_CONTAINERS)
        if not isinstance(schema, (Mapping, bool)):
            raise ValueError(f"json must be a JSON schema (an object, or its text), got {shown(self.json)}")

    def _check_choice(self) -> None:
        self.choice = _strings("choice", self.choice)
        if not self.choice:
            raise ValueError("choice must name at least one text")

    def _check_json_object(self) -> None:
        if self.json_object is not True:
            raise ValueError(f"json_object must be True or left out, got {shown(self.json_object)}")

    def _check_text(self) -> None:
        text = getattr(self, self.kind)
        if not isinstance(text, str) or not text:
            raise ValueError(f"{self.kind} must be text that is not empty, got {shown(text)}")
        if self.kind == "structural_tag":
            check_depth("structural_tag", _parsed("structural_tag", text), MAX_CONTAINERS)
        if self.kind == "grammar" and text.count("(") > MAX_DEPTH:
            _check_parentheses(text)


MAX_DEPTH = 100
"""Levels of lists and objects in a schema; xgrammar's parsers and pickle are recursive."""
MAX_CONTAINERS = 10_000
"""Lists and objects in a schema: with 12,000 xgrammar takes half a second, with 200,000 more than a minute."""
STRUCTURE_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass
class SamplingParams:
    """Settings of a request: the choice of tokens, when to stop, and which details to report.

    Every value is checked on construction: a wrong one raises a ValueError that names the field, the
    value and the range. The order in which the sampler applies them is in engine/sample/sampler.py.
    """

    n: int = 1
    """Independent completions of the same prompt."""
    best_of: int | None = None
    """Compute this many completions and return the n with the highest cumulative log-probability, best first.
    From vLLM V0. A stream yields nothing before all have ended."""

    presence_penalty: float = 0.0
    """Subtracted from the logit of every token that is in the output."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the output."""
    repetition_penalty: float = 1.0
    """Logits of tokens in prompt or output are divided by it if positive, multiplied if negative."""
    temperature: float = 1.0
    """0: take the most likely token."""
    top_p: float = 1.0
    """Keep the most likely tokens up to this total probability, the one that crosses it included."""
    top_k: int = 0
    """Keep this many of the most likely tokens; 0 and -1 keep all."""
    min_p: float = 0.0
    """Drop tokens less likely than this fraction of the most likely one."""
    seed: int | None = None
    """Seed of the sampling noise, independent of the batch; None and -1 draw one."""

    stop: str | list[str] | None = None
    """Stop strings: they end the output and are cut off the text. A list after construction."""
    stop_token_ids: list[int] | None = None
    """Stop tokens: ids that end the output. A list after construction."""
    ignore_eos: bool = False
    """Do not stop at the model's own end-of-sequence tokens."""
    max_tokens: int | None = 16
    """Maximum number of tokens to generate; None: up to max_model_len."""
    min_tokens: int = 0
    """Number of tokens before which end-of-sequence, stop tokens and stop strings have no effect."""

    logprobs: int | None = None
    """Log-probabilities of the sampled token and of this many alternatives; -1: the whole vocabulary."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for each prompt token but the first."""

    detokenize: bool = True
    """False: leave `text` empty, which saves time."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    spaces_between_special_tokens: bool = True
    """Accepted for compatibility: the supported tokenizers add no such space."""
    include_stop_str_in_output: bool = False
    """Keep the stop string (or the text of the stop token) at the end of the text."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    logit_bias: dict[int, float] | None = None
    """Token id -> number in [-100, 100] that is added to its logit. Ids may be strings of digits, as in JSON."""
    allowed_token_ids: list[int] | None = None
    """Ids that may be sampled; None: all."""
    bad_words: list[str] | None = None
    """Words to avoid: the last token of each is forbidden after its other tokens."""
    skip_reading_prefix_cache: bool | None = None
    """Compute the whole prompt without prefix hits. None: only if prompt logprobs need it."""

    structured_outputs: StructuredOutputsParams | None = None
    """Constraint on the output: a JSON schema, a regex, a choice or a grammar. May be a dict."""
    extra_args: dict[str, Any] | None = None
    """`kv_transfer_params`: those of a RequestOutput of another engine, or `{"do_remote_decode": True}` to get some
    (engine/transfer/README.md)."""

    bad_words_token_ids: list[list[int]] = field(default_factory=list, init=False, repr=False)
    """`bad_words` as token ids, filled by the frontend."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        _refuse_unknown(cls, kwargs)  # before dataclass's bare "unexpected keyword argument"
        return object.__new__(cls)

    @classmethod
    def create(cls, **kwargs: Any) -> Self:
        """Build from keywords, like `EngineArgs.create`."""
        return cls(**kwargs)

    def __post_init__(self) -> None:
        self._check_numbers_and_flags()
        self._normalise_lists()
        self._check_objects()
        self._check_combinations()
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def num_completions(self) -> int:
        """Number of completions to compute; n of them are returned."""
        return self.best_of or self.n

    def _check_numbers_and_flags(self) -> None:
        for name, allowed in _INTEGERS.items():
            setattr(self, name, _integer(name, getattr(self, name), allowed))
        for name, allowed in _FLOATS.items():
            setattr(self, name, _float(name, getattr(self, name), allowed))
        if self.seed == -1:
            self.seed = None
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool) and (name, value) != ("skip_reading_prefix_cache", None):
                raise ValueError(f"{name} must be True or False, got {shown(value)}")
        if not isinstance(self.output_kind, RequestOutputKind):
            kinds = ", ".join(f"RequestOutputKind.{kind.name}" for kind in RequestOutputKind)
            raise ValueError(f"output_kind must be one of {kinds}, got {shown(self.output_kind)}")

    def _normalise_lists(self) -> None:
        self.stop = _strings("stop", [self.stop] if isinstance(self.stop, str) else self.stop)
        self.bad_words = _strings("bad_words", self.bad_words)
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids or [])
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise ValueError("allowed_token_ids must not be empty; leave it None to allow every token")
        if self.logit_bias is not None:
            self.logit_bias = _logit_bias(self.logit_bias)

    def _check_objects(self) -> None:
        structure, extra = self.structured_outputs, self.extra_args
        if isinstance(structure, Mapping) and all(isinstance(name, str) for name in structure):
            self.structured_outputs = StructuredOutputsParams(**structure)
        elif structure is not None and not isinstance(structure, StructuredOutputsParams):
            raise ValueError(f"structured_outputs must be StructuredOutputsParams, got {shown(structure)}")
        if extra is not None:
            if not isinstance(extra, dict) or extra.keys() - {"kv_transfer_params"}:
                raise ValueError(
                    f"extra_args takes a dict with the key kv_transfer_params, got {shown(extra)}"
                )
            if not isinstance(params := extra.get("kv_transfer_params", {}), dict):
                raise ValueError(f"kv_transfer_params must be a dict, got {shown(params)}")

    def _check_combinations(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}"
            )
        if self.stop and not self.detokenize:
            raise ValueError("stop needs detokenize=True: without text no stop string can be found")
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"best_of must be at least n ({self.n}), got {self.best_of}")
        if self.num_completions > 1 and self.is_greedy:
            name, value = ("n", self.n) if self.n > 1 else ("best_of", self.best_of)
            raise ValueError(
                f"{name} must be 1 when temperature is 0, got {value}: all completions would be the same"
            )


class _Range(NamedTuple):
    """Range of a number: [low, high], or (low, high] if `above`."""

    low: float = -inf
    high: float = inf
    above: bool = False
    optional: bool = False
    meaning: str = ""

    def __contains__(self, value: Any) -> bool:
        return bool((self.low < value if self.above else self.low <= value) and value <= self.high)

    def __str__(self) -> str:
        low = f"> {self.low}" if self.above else f">= {self.low}"
        bounds = low if self.high == inf else f"{low} and <= {self.high}"
        return bounds + (f" ({self.meaning})" if self.meaning else "") + (" or None" if self.optional else "")


_INTEGERS = {
    "n": _Range(1, 16384),
    "best_of": _Range(1, 16384, optional=True),
    "top_k": _Range(-1, meaning="0 and -1 mean off"),
    "seed": _Range(-(2**63), 2**63 - 1, optional=True),
    "max_tokens": _Range(1, optional=True),
    "min_tokens": _Range(0),
    "logprobs": _Range(-1, meaning="-1 means the whole vocabulary", optional=True),
    "prompt_logprobs": _Range(-1, meaning="-1 means the whole vocabulary", optional=True),
}
_FLOATS = {
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0, above=True, meaning="1 means off"),
    "temperature": _Range(0, meaning="0 means greedy"),
    "top_p": _Range(0, 1, above=True),
    "min_p": _Range(0, 1),
}


_FLAGS = tuple(field.name for field in fields(SamplingParams) if str(field.type).startswith("bool"))


def _refuse_unknown(cls: type, kwargs: Mapping[str, Any], what: str = "sampling parameter") -> None:
    known = [f.name for f in fields(cls) if f.init]
    for name in kwargs:
        if name not in known:
            raise ValueError(unknown_name(f"unknown {what}", name, known))


def _integer(name: str, value: Any, allowed: _Range) -> int | None:
    if value is None and allowed.optional:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value not in allowed:
        raise ValueError(f"{name} must be an integer {allowed}, got {shown(value)}")
    return int(value)


def _is_finite(value: Any) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer beyond the range of a float
        return False


def _float(name: str, value: Any, allowed: _Range) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not _is_finite(value)
        or value not in allowed
    ):
        raise ValueError(f"{name} must be a finite number {allowed}, got {shown(value)}")
    return float(value)


def list_of(value: Any) -> list[Any] | None:
    """Return the items of a list or of anything like it, such as an array; None for a single value."""
    try:
        return list(value)
    except TypeError:
        return None


def _strings(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name} must be a list of strings, got {shown(value)}")
    for item in value:
        if not isinstance(item, str) or not item:
            raise ValueError(f"{name} must hold strings that are not empty, got {shown(item)}")
    return list(value)


def _parsed(name: str, text: str) -> Any:
    try:
        return json_module.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not valid JSON: {error}") from error
    except RecursionError:
        raise ValueError(_too_deep(name)) from None


def check_depth(name: str, value: Any, most: float = inf) -> None:
    """Raise ValueError for values that are nested more deeply than their readers, which are recursive, can follow.

    most: lists and objects that the value may consist of.
    """
    level, total = [value], 0
    for _ in range(MAX_DEPTH + 1):
        containers = [inner for inner in level if isinstance(inner, (Mapping, list, tuple))]
        total += len(containers)
        if total > most:
            raise ValueError(f"{name} has more than {most:,} lists and objects")
        if not containers:
            return
        level = [
            inner
            for container in containers
            for inner in (container.values() if isinstance(container, Mapping) else container)
        ]
    raise ValueError(_too_deep(name))


def _check_parentheses(text: str) -> None:
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth > MAX_DEPTH:
            raise ValueError(_too_deep("grammar"))


def _too_deep(name: str) -> str:
    return f"{name} is nested more than {MAX_DEPTH} levels deep"


def _token_ids(name: str, value: Any) -> list[int]:
    items = None if isinstance(value, (str, bytes, Mapping)) else list_of(value)
    if items is None:
        raise ValueError(f"{name} must be a list of token ids, got {shown(value)}")
    return [item if type(item) is int and item >= 0 else _token_id(name, item) for item in items]


def _token_id(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ValueError(f"{name} must hold token ids (integers >= 0), got {shown(value)}")
    return int(value)


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {shown(value)}")
    biases, allowed = {}, _Range(-100, 100)
    for key, bias in value.items():
        is_digits = isinstance(key, str) and len(key) < 20 and key.isdecimal()
        token_id = _token_id("logit_bias", int(key) if is_digits else key)
        biases[token_id] = _float(f"logit_bias[{token_id}]", bias, allowed)
    return biases
