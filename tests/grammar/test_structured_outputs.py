"""Structured outputs through the whole engine: a model with random weights says nothing but what its grammar allows."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from engine import LLM, SamplingParams
from engine.config import ConfigError
from engine.core.request import RequestStatus
from engine.core.resources import GrammarWait
from engine.core.sched_output import GrammarBitmask, Reason
from engine.frontend.input_processor import InvalidRequestError
from engine.grammar.manager import GrammarManager
from engine.outputs import RequestOutput
from engine.sampling_params import StructuredOutputsParams
from engine.trace.reader import TraceReader
from engine.trace.why import why
from engine.worker.model_runner import bitmask_rows

MakeLLM = Callable[..., LLM]
BACKENDS = ["dfa", "xgrammar"]
SCHEMAS = [
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer"}},
        "required": ["ok"],
    },
    {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "minItems": 1, "maxItems": 4},
    {"type": "object", "properties": {"tag": {"type": "string", "maxLength": 4}}, "required": ["tag"]},
    {"anyOf": [{"type": "number", "minimum": 0, "maximum": 9}, {"type": "string", "pattern": "^[ab]{1,3}$"}]},
    {"$ref": "#/$defs/d", "$defs": {"d": {"type": "string", "format": "date"}}},
]


def config(backend: str) -> dict[str, Any]:
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    return {"structured_outputs_config": {"backend": backend}}


def params(seed: int = 0, *, max_tokens: int = 100, compact: bool = True, **structure: Any) -> SamplingParams:
    if "json" in structure:
        structure["disable_any_whitespace"] = compact
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, structured_outputs=structure)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [completion.text for output in outputs for completion in output.outputs]


# -- what comes out


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_finished_output_parses_and_validates_at_temperature_1(make_llm: MakeLLM, backend: str) -> None:
    llm = make_llm(**config(backend), num_gpu_blocks_override=64)  # so few that requests are preempted
    # First compile each grammar: on a busy machine requests would wait for it in turn, and none would be preempted.
    llm.generate(["hello"] * len(SCHEMAS), [params(json=schema, max_tokens=1) for schema in SCHEMAS])
    asked = [(schema, params(seed, json=schema)) for schema in SCHEMAS for seed in range(8)]
    outputs = llm.generate(["hello"] * len(asked), [p for _, p in asked])
    num_finished = 0
    for (schema, _), output in zip(asked, outputs, strict=True):
        assert output.error is None
        completion = output.outputs[0]
        assert completion.finish_reason in ("stop", "length")
        if completion.finish_reason == "stop":
            num_finished += 1
            jsonschema.validate(json.loads(completion.text), schema, jsonschema.Draft202012Validator)
    assert num_finished > len(asked) / 2
    assert sum(output.metrics.num_preemptions for output in outputs) > 0, "the cache was too large"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_choice_is_one_of_the_texts_and_json_object_is_an_object(make_llm: MakeLLM, backend: str) -> None:
    llm = make_llm(**config(backend))
    said = texts(
        llm.generate(["a"] * 8, [params(seed, choice=["yes", 'no "never"', "東京\n"]) for seed in range(8)])
    )
    assert set(said) <= {"yes", 'no "never"', "東京\n"} and len(set(said)) > 1
    outputs = llm.generate(["a"] * 8, [params(seed, json_object=True) for seed in range(8)])
    ended = [o.outputs[0].text for o in outputs if o.outputs[0].finish_reason == "stop"]
    assert ended and all(isinstance(json.loads(text), dict) for text in ended)


def test_a_context_free_grammar_needs_and_gets_xgrammar(make_llm: MakeLLM) -> None:
    pytest.importorskip("xgrammar")
    grammar = 'root ::= "(" root ")" | "x"'
    output = make_llm().generate("a", params(3, grammar=grammar, max_tokens=60))[0].outputs[0]
    assert output.finish_reason == "stop" and re.fullmatch(r"\(*x\)*", output.text)
    assert output.text.count("(") == output.text.count(")")
    refused = make_llm(**config("dfa")).generate("a", params(grammar=grammar))[0]
    assert refused.outputs[0].finish_reason == "error" and "xgrammar can" in (refused.error or "")


def test_a_truncated_output_is_reported_as_length_and_is_the_beginning_of_a_match(llm: LLM) -> None:
    output = llm.generate("a", params(regex="(ab){50}", max_tokens=7))[0].outputs[0]
    assert output.finish_reason == "length" and len(output.token_ids) == 7
    assert ("ab" * 50).startswith(output.text)


def test_n_completions_have_a_place_in_the_grammar_each(llm: LLM) -> None:
    sampling = params(5, regex="[a-z]{2,6}(-[0-9]{2})?")
    sampling.n = 4
    said = texts(llm.generate("hello", sampling))
    assert len(set(said)) > 1 and all(re.fullmatch("[a-z]{2,6}(-[0-9]{2})?", text) for text in said)


@pytest.mark.parametrize(
    "settings_", [{}, {"max_num_batched_tokens": 6, "max_num_seqs": 6}, {"enforce_eager": True}]
)
def test_in_a_mixed_batch_every_row_gets_its_own_mask_and_free_rows_none(
    make_llm: MakeLLM, settings_: dict[str, Any]
) -> None:
    patterns = ["[0-9]{3,9}", "[a-f ]{2,12}", None, "(yes|no)", None, "[A-Z]{1,7}\\.?", "é+東"]
    words = ["one ", "two ", "three ", "4 ", "5 ", "six ", "7 "]
    prompts = [word * (1 + 3 * index) for index, word in enumerate(words)]
    sampling = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=14, structured_outputs=p and {"regex": p})
        for i, p in enumerate(patterns)
    ]
    together = make_llm(**settings_).generate(prompts, sampling)
    alone_llm = make_llm()
    for prompt, one, pattern, output in zip(prompts, sampling, patterns, together, strict=True):
        completion = output.outputs[0]
        assert completion.token_ids == alone_llm.generate(prompt, one)[0].outputs[0].token_ids
        if pattern is not None and completion.finish_reason == "stop":
            assert re.fullmatch(pattern, completion.text)


def test_the_mask_leaves_replayed_decode_steps_as_they_are(make_llm: MakeLLM) -> None:
    sampling = [params(seed, regex="[a-z ]{20,30}", max_tokens=40) for seed in range(5)]
    wide = {"hf_overrides": {"head_dim": 16}}  # what the C++ kernels take
    replayed, eager = make_llm(**wide), make_llm(**wide, enforce_eager=True)
    assert replayed.llm_engine.engine_core.executor.worker.runner.replays
    assert texts(replayed.generate(["x"] * 5, sampling)) == texts(eager.generate(["x"] * 5, sampling))


def test_state_survives_preemption(make_llm: MakeLLM) -> None:
    sampling = [params(seed, regex="([a-z]{3}[0-9]{3})+", max_tokens=60) for seed in range(8)]
    prompts = [f"request number {seed}" for seed in range(8)]
    roomy = make_llm().generate(prompts, sampling)
    tight = make_llm(num_gpu_blocks_override=40).generate(prompts, sampling)
    assert sum(output.metrics.num_preemptions for output in tight) > 2
    assert texts(tight) == texts(roomy)


# -- the rules around it


def test_end_of_sequence_comes_only_where_the_output_is_whole(llm: LLM) -> None:
    eos = llm.get_tokenizer().eos_token_id
    for seed in range(10):
        sampling = params(seed, regex="[ab]{4}(c{3})?")
        sampling.logit_bias = {eos: 100.0}  # as much as can be asked for
        output = llm.generate("x", sampling)[0].outputs[0]
        assert re.fullmatch("[ab]{4}", output.text) and output.token_ids[-1] == eos


def test_a_bias_cannot_lift_a_mask_and_other_bans_hold_inside_it(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    z, a = tokenizer.encode("z")[0], tokenizer.encode("a")[0]
    biased = params(1, regex="[ab]{6}")
    biased.logit_bias = {z: 100.0}
    assert re.fullmatch("[ab]{6}", texts(llm.generate("x", biased))[0])
    banned = params(1, regex="[ab]{6}")
    banned.bad_words = ["a"]
    said = llm.generate("x", banned)[0].outputs[0]
    assert a not in said.token_ids and re.fullmatch("[ab]{6}", said.text)


def test_min_tokens_holds_end_of_sequence_back_as_long_as_something_else_is_allowed(llm: LLM) -> None:
    sampling = params(2, regex="a*", max_tokens=30)
    sampling.min_tokens = 10
    output = llm.generate("x", sampling)[0].outputs[0]
    assert len(output.token_ids) >= 10 and set(output.text) == {"a"}
    sampling = params(2, regex="ab")
    sampling.min_tokens = 10
    output = llm.generate("x", sampling)[0]
    assert output.outputs[0].finish_reason == "error" and "min_tokens" in (output.error or "")


def test_a_grammar_ends_an_output_even_where_eos_is_to_be_ignored(llm: LLM) -> None:
    sampling = params(2, regex="ab")
    sampling.ignore_eos = True
    output = llm.generate("x", sampling)[0].outputs[0]
    assert (output.text, output.finish_reason) == ("ab", "stop")


def test_logprobs_are_those_of_the_model_without_the_mask(llm: LLM) -> None:
    sampling = params(0, regex="a")
    sampling.temperature, sampling.logprobs = 0.0, 1
    masked = llm.generate("hello", sampling)[0].outputs[0]
    free = llm.generate("hello", SamplingParams(temperature=0, max_tokens=1, logprobs=20))[0].outputs[0]
    chosen = masked.logprobs[0][masked.token_ids[0]]
    best = max(free.logprobs[0].values(), key=lambda entry: entry.logprob)
    assert chosen.rank is not None and chosen.rank > 1 and chosen.logprob < best.logprob < 0


# -- what goes wrong


@pytest.mark.parametrize(
    ("structure", "complaint"),
    [
        ({"regex": "(abc"}, "never closed"),
        ({"regex": r"a[^\x00-\U0010ffff]"}, "no text at all"),
        ({"json": {"type": "array", "uniqueItems": True}}, "'uniqueItems' is not supported"),
        ({"json": '{"type": "object", "properties": {"a": {"type": "nope"}}}'}, "#/properties/a"),
    ],
)
def test_a_grammar_that_does_not_compile_ends_one_request_and_no_other(
    llm: LLM, structure: dict[str, Any], complaint: str
) -> None:
    sampling = [params(0, regex="[a-z]{3}"), params(0, **structure), SamplingParams(max_tokens=4)]
    good, bad, free = llm.generate(["one", "two", "three"], sampling)
    assert bad.outputs[0].finish_reason == "error" and complaint in (bad.error or "")
    assert good.outputs[0].finish_reason == "stop" and free.outputs[0].finish_reason in ("length", "stop")
    assert llm.generate("again", params(0, **structure))[0].outputs[0].finish_reason == "error", (
        "and every time"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_grammar_that_no_token_can_go_on_with_ends_in_an_error(make_llm: MakeLLM, backend: str) -> None:
    llm = make_llm(**config(backend))
    sampling = params(0, regex="a[0-9]")
    sampling.bad_words = list("0123456789")
    output = llm.generate("x", sampling)[0]
    assert output.outputs[0].finish_reason == "error" and "every token is forbidden" in (output.error or "")


def test_wrong_values_are_refused_by_name() -> None:
    def refuse(complaint: str, **structure: Any) -> None:
        with pytest.raises(ValueError, match=complaint):
            SamplingParams(structured_outputs=structure)

    refuse("exactly one of json, regex, .* got none")
    refuse("got regex and choice", regex="a", choice=["a"])
    refuse("unknown structured outputs option 'reges'; did you mean 'regex'", reges="a")
    refuse("regex must be text", regex=3)
    refuse("regex must be text that is not empty", regex="")
    refuse("choice must be a list of strings", choice="yes")
    refuse("choice must name at least one", choice=[])
    refuse("json is not valid JSON", json="{")
    refuse("json must be a JSON schema", json="3")
    refuse("json_object must be True", json_object=False)
    refuse("disable_any_whitespace must be True or False", json={}, disable_any_whitespace="no")
    with pytest.raises(ValueError, match="must be StructuredOutputsParams"):
        SamplingParams(structured_outputs="json")
    assert StructuredOutputsParams(json='{"type": "null"}').json_schema == {"type": "null"}


def test_wrong_settings_are_refused_by_name(make_llm: MakeLLM) -> None:
    for value, complaint in [
        ({"backend": "outlines"}, "backend must be one of auto, xgrammar, dfa"),
        ({"bakend": "dfa"}, "structured_outputs_config has an unknown key 'bakend'; did you mean 'backend'"),
        ("{", "is not valid JSON"),
        (["dfa"], "must be a dict"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            make_llm(structured_outputs_config=value)


def test_without_a_tokenizer_structured_outputs_are_refused_at_the_door(make_llm: MakeLLM) -> None:
    llm = make_llm(skip_tokenizer_init=True)
    with pytest.raises(InvalidRequestError, match="structured output needs a tokenizer"):
        llm.generate([[5, 6, 7]], params(regex="a"))


# -- waiting for a grammar


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Grammars compile only once this is set."""
    event = threading.Event()
    compile_it = GrammarManager._compile

    def wait_and_compile(self: GrammarManager, structure: StructuredOutputsParams) -> Any:
        assert event.wait(60)
        return compile_it(self, structure)

    monkeypatch.setattr(GrammarManager, "_compile", wait_and_compile)
    return event


def test_others_go_on_while_a_grammar_compiles_and_the_trace_says_who_waits_for_what(
    make_llm: MakeLLM, held: threading.Event, tmp_path: Any
) -> None:
    path = str(tmp_path / "run.itrace")
    llm = make_llm(trace=path, max_num_seqs=3)
    engine = llm.llm_engine
    process = engine.input_processor.process
    engine.add(process("structured", "hello", params(regex="[a-z]{3}")))
    for name in ("one", "two"):
        engine.add(process(name, name, SamplingParams(max_tokens=5, ignore_eos=True)))
    scheduler = engine.engine_core.scheduler
    while len(scheduler.requests) > 1:
        engine.step()
        assert scheduler.requests["structured"].status is RequestStatus.WAITING_GRAMMAR
        assert scheduler.stats.num_grammar_waits == 1
    held.set()
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert outputs[-1].finished and re.fullmatch("[a-z]{3}", outputs[-1].outputs[0].text)
    llm.shutdown()
    answer = why(TraceReader(path), "structured", 2)
    assert answer.reason is Reason.GRAMMAR_COMPILING and "still being compiled" in answer.sentence


def test_a_trace_with_grammars_replays(make_llm: MakeLLM, tmp_path: Any) -> None:
    path = str(tmp_path / "run.itrace")
    llm = make_llm(trace=path, num_gpu_blocks_override=40)
    asked = [
        params(0, regex="[a-z]{3}"),
        params(0, regex="(a"),
        params(1, regex="([a-z]{3}[0-9])+"),
        SamplingParams(),
    ]
    llm.generate(["a", "b", "c" * 40, "d" * 40], asked)
    llm.shutdown()
    reader = TraceReader(path)
    assert not reader.problems and not reader.warnings
    counted = [reader.step(step).counters for step in range(reader.num_steps)]
    assert sum(counters.get("num_masked_rows", 0) for counters in counted) > 3
    assert sum(counters.get("grammar_compile_us", 0) for counters in counted) > 0


def test_a_request_can_be_aborted_while_its_grammar_compiles(llm: LLM, held: threading.Event) -> None:
    engine = llm.llm_engine
    for name in ("gone", "stays"):
        engine.add(engine.input_processor.process(name, "hello", params(regex="[a-z]{3}")))
    engine.step()
    assert [output.outputs[0].finish_reason for output in engine.abort(["gone"])] == ["abort"]
    engine.step()
    assert set(GrammarWait.of(engine.engine_core.scheduler).compiling) == {"stays"}
    held.set()
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert {output.request_id for output in outputs} == {"stays"}


def test_a_grammar_is_compiled_once_for_all_who_ask_for_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_it = GrammarManager._compile
    monkeypatch.setattr(
        GrammarManager, "_compile", lambda self, s: compiled.append(s.regex) or compile_it(self, s)
    )
    llm.generate(["a"] * 6, [params(seed, regex=pattern) for seed in range(3) for pattern in ("a", "[bc]")])
    assert sorted(compiled) == ["[bc]", "a"]


def test_masks_follow_the_requests_and_not_their_places_in_the_batch() -> None:
    mask = GrammarBitmask([("b", 0), ("a", 0), ("a", 1)], np.array([[1, 2], [3, 4], [5, 6]], np.int32))
    rows = bitmask_rows(mask, [("x", 0), ("a", 1), ("b", 0), ("a", 0)])
    assert rows.tolist() == [[-1, -1], [5, 6], [1, 2], [3, 4]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_drafts_change_no_token_of_a_structured_output(
    make_llm: MakeLLM, backend: str, tmp_path: Any
) -> None:
    """N-gram drafts repeat what was said, which the grammar may forbid: "ab" is followed by a digit, in turn."""
    sampling = [params(seed, regex="(ab[0-9]){3,8}(yes|no)", max_tokens=40) for seed in range(6)]
    prompts = ["ab1ab2ab3ab4ab5 yes no ab1ab2" * (1 + index % 2) for index in range(6)]
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    path = str(tmp_path / "run.itrace")
    with_drafts = make_llm(**config(backend), speculative_config=speculative, trace=path)
    drafted = with_drafts.generate(prompts, sampling)
    plain = make_llm(**config(backend)).generate(prompts, sampling)
    assert [o.outputs[0].token_ids for o in drafted] == [o.outputs[0].token_ids for o in plain]
    assert all(output.error is None for output in drafted)
    with_drafts.shutdown()
    reader = TraceReader(path)
    counted = [reader.step(step).counters for step in range(reader.num_steps)]
    assert sum(counters.get("num_draft_tokens", 0) for counters in counted) > 5
    assert any(counters.get("num_masked_rows", 0) > len(prompts) for counters in counted), (
        "masks behind drafts"
    )
