"""Outputs for callers from scripted core outputs, without model or scheduler."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, TokenLogprobs
from engine.frontend.detokenizer import Detokenizer
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.parallel_sampling import SubmittedRequest, fan_out
from engine.frontend.tokenizer import Tokenizer
from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams

KINDS = list(RequestOutputKind)


class Script:
    """An output processor, one request in it, and a core that says what the test tells it to."""

    def __init__(self, tokenizer: Tokenizer | None, num_queued: int | None = None, **params: Any) -> None:
        self.tokenizer = tokenizer
        self.now = 100.0
        self.processor = OutputProcessor(tokenizer, clock=lambda: self.now)
        self.params = SamplingParams(**params)
        request = Request("r", [5, 6], self.params)
        children = list(fan_out(request, self.params.n))[:num_queued]
        self.processor.add(SubmittedRequest("r", "prompt", [5, 6], self.params, 90.0, children))

    def step(self, *outputs: EngineCoreOutput) -> list[RequestOutput]:
        """Do as LLMEngine.step: the core aborts requests in which the frontend found a stop string."""
        self.processor.update(outputs)
        stopped = self.processor.take_stopped()
        self.processor.update(
            EngineCoreOutput(name, [], finish_reason="abort", events=[]) for name in stopped
        )
        return self.processor.take_outputs()

    def say(self, text: str, request_id: str = "r", **fields: Any) -> list[RequestOutput]:
        """One step in which a request generates the tokens of a text, one byte each."""
        return self.step(EngineCoreOutput(request_id, self.ids(text), **fields))

    def ids(self, text: str) -> list[int]:
        by_bytes = {self.tokenizer.token_bytes(i): i for i in reversed(range(self.tokenizer.vocab_size))}
        return [by_bytes[bytes([byte])] for byte in text.encode()]


def test_a_cumulative_stream_has_everything_so_far_and_deltas_what_is_new(byte_level: Tokenizer) -> None:
    seen = {}
    for kind in KINDS:
        script = Script(byte_level, output_kind=kind)
        steps = [script.say("a"), script.say("b"), script.say("c", finish_reason="length")]
        seen[kind.name] = [output.outputs[0].text for step in steps for output in step]
    assert seen == {"CUMULATIVE": ["a", "ab", "abc"], "DELTA": ["a", "b", "c"], "FINAL_ONLY": ["abc"]}


@pytest.mark.parametrize("kind", KINDS)
def test_completions_may_be_queued_later_and_a_request_that_is_closed_ends_without_the_rest(
    byte_level: Tokenizer, kind: RequestOutputKind
) -> None:
    script = Script(byte_level, n=3, num_queued=1, output_kind=kind, temperature=1)
    begun = script.say("a", "0_r", finish_reason="length")
    assert len(begun) == (kind is RequestOutputKind.DELTA), "an output with all completions waits for all"
    assert script.processor.close(["r"]) == []
    (output,) = script.processor.take_outputs()
    assert output.finished and not len(script.processor)
    assert [each.text for each in (begun or [output])[0].outputs] == ["a"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"finish_reason": "length"}, ("length", None)),
        ({"finish_reason": "stop"}, ("stop", None)),
        ({"finish_reason": "stop", "stop_reason": 77}, ("stop", 77)),
        ({"finish_reason": "abort"}, ("abort", None)),
    ],
)
def test_the_cores_reasons_are_reported_as_they_are(
    byte_level: Tokenizer, fields: dict[str, Any], expected: tuple[str, object]
) -> None:
    (output,) = Script(byte_level).say("ab", **fields)
    assert output.finished and (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == expected


def test_the_token_that_ends_the_output_is_counted_but_not_shown(byte_level: Tokenizer) -> None:
    """A stop token may be an ordinary word; only include_stop_str_in_output shows it."""
    for include, text in ((False, "ab"), (True, "abc")):
        script = Script(byte_level, stop_token_ids=[70], include_stop_str_in_output=include)
        (output,) = script.say("abc", finish_reason="stop", stop_reason=70)
        assert output.outputs[0].text == text
        assert output.outputs[0].token_ids == script.ids("abc")


def test_a_stop_string_ends_the_request_in_the_core_and_for_the_caller(byte_level: Tokenizer) -> None:
    script = Script(byte_level, stop="cd")
    assert not script.say("abc")[0].finished
    (output,) = script.say("d")
    (completion,) = output.outputs
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("ab", "stop", "cd")
    assert completion.token_ids == script.ids("abcd")
    assert output.finished and len(script.processor) == 0


def test_tokens_behind_a_stop_string_never_existed(byte_level: Tokenizer) -> None:
    """Several tokens of one step, as speculation gives them."""
    script = Script(byte_level, stop="b", logprobs=0, output_kind=RequestOutputKind.DELTA)
    ids = script.ids("abcd")
    logprobs = [TokenLogprobs([token_id], [-1.0], 1) for token_id in ids]
    (output,) = script.step(EngineCoreOutput("r", ids, logprobs=logprobs))
    (completion,) = output.outputs
    assert (completion.text, completion.token_ids) == ("a", ids[:2])
    assert len(completion.logprobs) == 2 and completion.cumulative_logprob == -2.0


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_stop_string_wins_over_another_end_in_the_same_step(byte_level: Tokenizer, reason: str) -> None:
    script = Script(byte_level, stop="b")
    (output,) = script.say("abc", finish_reason=reason)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "b")
    assert script.processor.take_stopped() == []


def test_nothing_is_decoded_for_a_caller_who_waits_for_the_end(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless stop strings must be looked for."""
    push, calls = Detokenizer.push, []
    monkeypatch.setattr(Detokenizer, "push", lambda self, ids: calls.append(len(ids)) or push(self, ids))
    script = Script(byte_level, output_kind=RequestOutputKind.FINAL_ONLY)
    assert [script.say(c) for c in "ab"] == [[], []] and calls == []
    (output,) = script.say("c", finish_reason="length")
    assert output.outputs[0].text == "abc" and calls == [3]
    searching = Script(byte_level, output_kind=RequestOutputKind.FINAL_ONLY, stop="xy")
    searching.say("ab")
    assert calls == [3, 1, 1]


def test_held_back_text_comes_with_the_end(byte_level: Tokenizer) -> None:
    script = Script(byte_level, stop="xyz", output_kind=RequestOutputKind.DELTA)
    texts = [script.say(c)[0].outputs[0].text for c in "abx"]
    (last,) = script.say("y", finish_reason="length")
    assert [*texts, last.outputs[0].text] == ["", "", "a", "bxy"]


@pytest.mark.parametrize("seed", range(20))
def test_deltas_add_up_to_the_final_answer(tokenizer: Tokenizer, seed: int) -> None:
    """Random tokens in random portions, with n completions, logprobs and a stop string."""
    rng = random.Random(seed)
    n = rng.randrange(1, 4)
    params = {"n": n, "stop": rng.choice([[], ["a"], ["the ", "\ufffd\ufffd"]]), "logprobs": 0}
    scripts = {kind: Script(tokenizer, output_kind=kind, **params) for kind in KINDS}
    names = [f"{i}_r" for i in range(n)] if n > 1 else ["r"]
    merged: RequestOutput | None = None
    last: dict[RequestOutputKind, RequestOutput] = {}
    while len(scripts[KINDS[0]].processor):
        step = []
        for name in rng.sample(names, k=rng.randrange(1, n + 1)):
            ids = rng.choices(range(tokenizer.vocab_size), k=rng.randrange(1, 4))
            logprobs = [TokenLogprobs([i], [-0.5], 1) for i in ids]
            end = "length" if rng.random() < 0.2 else None
            step.append(EngineCoreOutput(name, ids, finish_reason=end, logprobs=logprobs))
        for kind, script in scripts.items():
            for output in script.step(*step):
                last[kind] = output
                if kind is RequestOutputKind.DELTA:
                    merged = output if merged is None else merged.with_delta(output)
    final = last[RequestOutputKind.FINAL_ONLY]
    assert merged.outputs == final.outputs == last[RequestOutputKind.CUMULATIVE].outputs
    assert [completion.index for completion in final.outputs] == list(range(n))


def test_completions_come_in_order_and_a_delta_names_only_the_new_ones(byte_level: Tokenizer) -> None:
    script = Script(byte_level, n=3, output_kind=RequestOutputKind.DELTA)
    core = [EngineCoreOutput(f"{i}_r", script.ids("abc"[i])) for i in (2, 0)]
    (output,) = script.step(*core)
    assert [(c.index, c.text) for c in output.outputs] == [(0, "a"), (2, "c")] and not output.finished
    ends = [EngineCoreOutput(f"{i}_r", [], finish_reason="abort") for i in range(3)]
    assert [output.finished for output in script.step(*ends)] == [True]


def test_a_request_is_finished_when_its_last_completion_is(byte_level: Tokenizer) -> None:
    script = Script(byte_level, n=2)
    (first,) = script.say("a", "1_r", finish_reason="length")
    assert not first.finished and [c.finished for c in first.outputs] == [False, True]
    (last,) = script.say("b", "0_r", finish_reason="length")
    assert last.finished and [c.text for c in last.outputs] == ["b", "a"]


def test_a_request_that_has_ended_leaves_nothing_behind(byte_level: Tokenizer) -> None:
    script = Script(byte_level, n=2, stop="x")
    script.say("ax", "0_r")
    assert script.processor.core_ids(["r"]) == ["1_r"]
    script.say("b", "1_r", finish_reason="length")
    assert len(script.processor) == 0 and "r" not in script.processor
    assert not script.processor._completions and not script.processor._changed
    assert script.say("late", "1_r") == [] and script.processor.core_ids(["r", "unknown"]) == []


def test_logprobs_name_the_sampled_token_first_then_by_rank(byte_level: Tokenizer) -> None:
    script = Script(byte_level, logprobs=2)
    a, b, c = script.ids("abc")
    sampled_is_third = TokenLogprobs([c, a, b], [-3.0, -1.0, -2.0], 3)
    sampled_is_first = TokenLogprobs([a, a, b], [-1.0, -1.0, -2.0], 1)
    (output,) = script.step(EngineCoreOutput("r", [c, a], logprobs=[sampled_is_third, sampled_is_first]))
    (completion,) = output.outputs
    first, second = completion.logprobs
    assert [(i, p.logprob, p.rank, p.decoded_token) for i, p in first.items()] == [
        (c, -3.0, 3, "c"), (a, -1.0, 1, "a"), (b, -2.0, 2, "b"),
    ]  # fmt: skip
    assert [(i, p.rank) for i, p in second.items()] == [(a, 1), (b, 2)]
    assert completion.cumulative_logprob == -4.0


def test_without_logprobs_there_is_no_sum(byte_level: Tokenizer) -> None:
    (output,) = Script(byte_level).say("a")
    assert output.outputs[0].logprobs is None and output.outputs[0].cumulative_logprob is None
    assert output.prompt_logprobs is None


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_logprobs_of_all_chunks_come_once_they_are_complete(
    byte_level: Tokenizer, kind: RequestOutputKind
) -> None:
    script = Script(byte_level, prompt_logprobs=0, output_kind=kind)
    chunk = [TokenLogprobs([6], [-0.5], 2)]
    assert script.step(EngineCoreOutput("r", [], prompt_logprobs=chunk)) == []
    seen = script.say("a") + script.say("b", finish_reason="length")
    counts = [output.prompt_logprobs and len(output.prompt_logprobs) for output in seen]
    assert counts == {"CUMULATIVE": [2, 2], "DELTA": [2, None], "FINAL_ONLY": [2]}[kind.name]
    if kind is RequestOutputKind.DELTA:
        assert seen[0].with_delta(seen[1]).prompt_logprobs == seen[0].prompt_logprobs
    assert seen[0].prompt_logprobs[0] is None and seen[0].prompt_logprobs[1][6].rank == 2


@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
def test_a_completion_that_is_ahead_does_not_show_half_of_the_prompt_logprobs(
    byte_level: Tokenizer, kind: RequestOutputKind
) -> None:
    script = Script(byte_level, n=2, prompt_logprobs=0, output_kind=kind)
    (ahead,) = script.say("a", "1_r")
    assert ahead.prompt_logprobs is None
    (complete,) = script.say("b", "0_r", prompt_logprobs=[TokenLogprobs([6], [-0.5], 2)])
    assert len(complete.prompt_logprobs) == 2


def test_without_a_tokenizer_there_are_ids_and_no_text() -> None:
    script = Script(None, logprobs=0)
    (output,) = script.step(
        EngineCoreOutput("r", [9], finish_reason="length", logprobs=[TokenLogprobs([9], [-1.0], 1)])
    )
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", [9])
    assert output.outputs[0].logprobs[0][9].decoded_token is None


def test_detokenize_false_saves_the_text(byte_level: Tokenizer) -> None:
    (output,) = Script(byte_level, detokenize=False).say("abc")
    assert output.outputs[0].text == "" and len(output.outputs[0].token_ids) == 3


def test_times_are_measured_as_in_vllm(byte_level: Tokenizer) -> None:
    """Arrival at 90; a preemption between the tokens counts inside."""
    script = Script(byte_level)
    script.now = 101.0
    script.say("a")
    script.now = 105.0
    events = [
        ("QUEUED", 91.0), ("SCHEDULED", 94.0), ("FIRST_TOKEN", 100.0),
        ("PREEMPTED", 101.0), ("SCHEDULED", 102.0), ("FINISHED", 104.0),
    ]  # fmt: skip
    (output,) = script.say("b", finish_reason="length", events=events, num_preemptions=1, num_cached_tokens=1)
    metrics = output.metrics
    assert metrics.first_token_latency == 11.0
    assert (metrics.queued_time, metrics.prefill_time, metrics.decode_time) == (3.0, 6.0, 4.0)
    assert (metrics.inference_time, metrics.e2e_latency, metrics.time_per_output_token) == (10.0, 15.0, 4.0)
    assert (metrics.num_generation_tokens, metrics.num_preemptions, output.num_cached_tokens) == (2, 1, 1)


def test_an_error_is_passed_on_with_its_cause(byte_level: Tokenizer) -> None:
    script = Script(byte_level)
    (output,) = script.step(EngineCoreOutput("r", [], finish_reason="error", error="no more memory"))
    assert output.finished and output.error == "no more memory"
    assert output.outputs[0].finish_reason == "error"


def test_outputs_print_as_a_short_line(byte_level: Tokenizer) -> None:
    (output,) = Script(byte_level, stop="c").say("abc")
    assert repr(output) == (
        "RequestOutput(r, finished, prompt='prompt', outputs=["
        "CompletionOutput(0: 'ab', 3 tokens, finish_reason='stop', stop_reason='c')])"
    )
