"""Whole answers from an engine with random weights."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine import LLM, RequestOutput, SamplingParams
from engine.config import ConfigError
from engine.core.errors import EngineDeadError
from engine.frontend.interrupt import interrupt_afterwards
from tests.waiting import wait_until

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def assert_idle(llm: LLM) -> None:
    """Check that no request is left in the frontend, the scheduler or the cache."""
    core = llm.llm_engine.engine_core
    assert not core.has_unfinished() and len(llm.llm_engine.output_processor) == 0
    assert not llm._inboxes
    core.scheduler.check_integrity()
    assert core.scheduler.kv.usage == 0


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["hello", "the cat sat on the mat", [5, 6, 7]]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 1, 4)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == ["hello", "the cat sat on the mat", None]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 4]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)
    assert_idle(llm)


@pytest.mark.parametrize("prompt", ["hello", [5, 6], {"prompt": "hello"}, {"prompt_token_ids": [5, 6]}])
def test_one_prompt_gives_a_list_of_one(llm: LLM, prompt: Any) -> None:
    (output,) = llm.generate(prompt, GREEDY)
    assert len(output.outputs[0].token_ids) == 8


def test_no_prompts_give_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_the_text_is_the_tokens_text(llm: LLM) -> None:
    (output,) = llm.generate("hello", SamplingParams(max_tokens=40, ignore_eos=True, seed=1))
    tokens = output.outputs[0].token_ids
    assert output.outputs[0].text == llm.get_tokenizer().decode(tokens, skip_special_tokens=True)


def test_a_stream_adds_up_to_what_generate_answers(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=3, logprobs=1)
    (whole,) = llm.generate("hello", params)
    deltas = list(llm.stream("hello", params))
    assert len(deltas) == 30 and deltas[-1].finished
    assert "".join(delta.outputs[0].text for delta in deltas) == whole.outputs[0].text
    assert [t for delta in deltas for t in delta.outputs[0].token_ids] == whole.outputs[0].token_ids
    assert_idle(llm)


def test_leaving_a_stream_aborts_its_request(llm: LLM) -> None:
    for _ in llm.stream("hello", SamplingParams(max_tokens=100, ignore_eos=True)):
        break
    assert_idle(llm)


def test_a_stream_goes_on_while_other_prompts_are_completed(llm: LLM) -> None:
    expected = texts(llm.generate("hello", GREEDY))
    streamed = ""
    for delta in llm.stream("hello", GREEDY):
        streamed += delta.outputs[0].text
        assert texts(llm.generate("hello", GREEDY)) == expected
    assert [streamed] == expected
    assert_idle(llm)


def test_threads_get_the_tokens_that_each_would_get_alone(make_llm: Callable[..., LLM]) -> None:
    """Mixed calls from eight threads: same tokens as alone, and the prefix cache holds nothing wrong afterwards."""
    prompts = [[5 + number % 3, *range(20, 32), 40 + number] for number in range(40)]
    params = [
        SamplingParams(temperature=number % 2, seed=number, max_tokens=6 + number % 5, ignore_eos=True)
        for number in range(40)
    ]
    expected = [output.outputs[0].token_ids for output in make_llm().generate(prompts, params)]
    llm = make_llm(max_num_seqs=6, num_gpu_blocks_override=64)

    def complete(number: int) -> list[int]:
        if number % 3:
            return llm.generate(prompts[number], params[number], use_tqdm=False)[0].outputs[0].token_ids
        deltas = llm.stream(prompts[number], params[number])
        return [token for delta in deltas for token in delta.outputs[0].token_ids]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(complete, range(40))) == expected
    assert_idle(llm)
    again = llm.generate(prompts, params)
    assert any(output.num_cached_tokens for output in again)
    assert [output.outputs[0].token_ids for output in again] == expected


def test_a_thread_gets_its_turn_while_another_completes_a_long_prompt(llm: LLM) -> None:
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(llm.generate, [[5, 6]] * 8, long)
        wait_until(llm.llm_engine.has_unfinished)
        llm.generate([7, 8], SamplingParams(max_tokens=1))
        assert not call.done()
        assert len(call.result()) == 8


def test_chat_writes_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|user|>hello</s><|assistant|>"
    assert texts(llm.generate(output.prompt, GREEDY)) == texts([output])
    assert texts(llm.chat([messages, messages], GREEDY)) == 2 * texts([output])
    (continued,) = llm.chat(messages, GREEDY, add_generation_prompt=False, chat_template="Q: hello")
    assert continued.prompt == "Q: hello"


def test_a_stop_string_ends_the_request_in_the_engine(llm: LLM) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True, seed=3)
    (whole,) = llm.generate("hello", params)
    text = whole.outputs[0].text
    stop = text[10:13]
    (output,) = llm.generate("hello", SamplingParams(max_tokens=60, ignore_eos=True, seed=3, stop=stop))
    (completion,) = output.outputs
    assert completion.text == text[: text.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    num_tokens = len(completion.token_ids)
    assert num_tokens < 60 and completion.token_ids == whole.outputs[0].token_ids[:num_tokens]
    assert output.metrics.last_token_ts >= output.metrics.first_token_ts > output.metrics.queued_ts > 0
    assert_idle(llm)


def test_end_of_sequence_and_stop_ids_have_vllms_reasons(llm: LLM) -> None:
    (free,) = llm.generate("hello", GREEDY)
    third = free.outputs[0].token_ids[2]
    (stopped,) = llm.generate(
        "hello", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop_token_ids=[third])
    )
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", third)
    forced = SamplingParams(allowed_token_ids=[1], max_tokens=8, temperature=0)
    (eos,) = llm.generate("hello", forced)
    assert (eos.outputs[0].finish_reason, eos.outputs[0].stop_reason) == ("stop", None)
    assert (eos.outputs[0].token_ids, eos.outputs[0].text) == ([1], "")


def test_min_tokens_holds_off_every_way_to_stop(llm: LLM) -> None:
    eager = {"temperature": 0, "max_tokens": 12, "logit_bias": {1: 100.0}}
    assert len(llm.generate("hello", SamplingParams(**eager))[0].outputs[0].token_ids) == 1
    (output,) = llm.generate("hello", SamplingParams(**eager, min_tokens=5))
    assert output.outputs[0].token_ids[5:] == [1] and 1 not in output.outputs[0].token_ids[:5]


def test_min_tokens_comes_before_stop_ids_and_stop_strings(llm: LLM) -> None:
    (free,) = llm.generate("hello", GREEDY)
    token_ids, text = free.outputs[0].token_ids, free.outputs[0].text
    stops = {"stop_token_ids": token_ids[:1], "stop": text[:1]}
    (output,) = llm.generate(
        "hello", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, min_tokens=4, **stops)
    )
    completion = output.outputs[0]
    assert len(completion.token_ids) > 4 and token_ids[0] not in completion.token_ids[:4]


def test_a_preempted_request_keeps_its_text_its_stop_strings_and_its_stream(
    make_llm: Callable[..., LLM],
) -> None:
    """The cache holds 96 tokens, and six requests together want more than 200."""
    stop = ["zz", "the mat!"]
    params = [SamplingParams(max_tokens=30, ignore_eos=True, seed=i, stop=stop, logprobs=0) for i in range(6)]
    prompts = [[20 + i] * 6 for i in range(6)]
    roomy = make_llm().generate(prompts, params)
    narrow = make_llm(num_gpu_blocks_override=25, max_model_len=64)
    first = narrow.stream(prompts[0], params[0])
    streamed = [next(first)]
    cramped = narrow.generate(prompts[1:], params[1:])
    streamed.extend(first)
    assert sum(output.metrics.num_preemptions for output in [*cramped, streamed[-1]]) > 0
    for with_preemption, without in zip(cramped, roomy[1:], strict=True):
        after, before = with_preemption.outputs[0], without.outputs[0]
        assert (after.text, after.token_ids, after.finish_reason) == (
            before.text, before.token_ids, before.finish_reason,
        )  # fmt: skip
        # Recomputed in another batch shape: the same number but for its last bit.
        assert after.cumulative_logprob == pytest.approx(before.cumulative_logprob, rel=1e-5)
        assert len(after.logprobs) == len(after.token_ids)
    assert "".join(delta.outputs[0].text for delta in streamed) == roomy[0].outputs[0].text
    assert_idle(narrow)


def test_a_bad_word_does_not_appear(llm: LLM) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True, seed=3)
    text = llm.generate("hello", params)[0].outputs[0].text
    words = [text[10:12], text[20:21]]
    banned = SamplingParams(max_tokens=60, ignore_eos=True, seed=3, bad_words=words)
    spelled = llm.llm_engine.input_processor.process("r", "hello", banned).children[0].sampling_params
    token_ids = llm.generate("hello", banned)[0].outputs[0].token_ids
    for word in spelled.bad_words_token_ids:
        places = range(len(token_ids) - len(word) + 1)
        assert not any(token_ids[i : i + len(word)] == word for i in places)


def test_only_allowed_ids_are_sampled(llm: LLM) -> None:
    (output,) = llm.generate("hello", SamplingParams(max_tokens=20, allowed_token_ids=[40, 41], seed=1))
    assert set(output.outputs[0].token_ids) == {40, 41}


def test_n_completions_share_one_prefill_and_differ(llm: LLM) -> None:
    prompt = list(range(10, 34))
    params = SamplingParams(n=4, max_tokens=12, ignore_eos=True, seed=5)
    (output,) = llm.generate([prompt], params)
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 4
    for index, completion in enumerate(output.outputs):
        alone = SamplingParams(max_tokens=12, ignore_eos=True, seed=5 + index)
        assert llm.generate([prompt], alone)[0].outputs[0].token_ids == completion.token_ids
    assert output.metrics.num_generation_tokens == 48
    assert_idle(llm)


def test_a_repeated_prompt_comes_from_the_prefix_cache(llm: LLM) -> None:
    prompt = list(range(10, 31))
    first, second = (llm.generate([prompt], GREEDY)[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 20)
    assert texts([first]) == texts([second])
    assert llm.reset_prefix_cache()
    assert llm.generate([prompt], GREEDY)[0].num_cached_tokens == 0


def test_prompt_logprobs_cover_the_prompt_even_if_it_is_cached(llm: LLM) -> None:
    prompt = list(range(10, 31))
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1, logprobs=0, n=1)
    first, second = (llm.generate([prompt], params)[0] for _ in range(2))
    assert first.prompt_logprobs[0] is None and second.num_cached_tokens == 0
    assert [next(iter(position)) for position in second.prompt_logprobs[1:]] == prompt[1:]
    assert second.prompt_logprobs == first.prompt_logprobs
    (completion,) = first.outputs
    chosen = [p[token] for p, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    assert [logprob.rank for logprob in chosen] == [1, 1]
    assert completion.cumulative_logprob == pytest.approx(sum(logprob.logprob for logprob in chosen))


# What is wrong is refused before anything starts


@pytest.mark.parametrize(
    ("prompts", "params", "expected"),
    [
        (["hello", ""], GREEDY, "prompt is empty"),
        (["hello", [400]], GREEDY, "not in the model's vocabulary"),
        (["hello", "the cat"], [GREEDY], "2 prompts, but 1 sampling_params"),
        (["hello", "the cat"], [], "2 prompts, but 0 sampling_params"),
        (["hello"], {}, "1 prompt, but 0 sampling_params"),
        (["hello", [9] * 128], GREEDY, "maximum context length is 128 tokens"),
        (["hello"], "warm", "sampling_params"),
        (["hello", "the cat"], [GREEDY, SamplingParams(logprobs=100)], "logprobs must be at most 20"),
    ],
)
def test_one_bad_request_among_many_stops_all_before_the_start(
    llm: LLM, prompts: Any, params: Any, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        llm.generate(prompts, params)
    assert_idle(llm)


def test_a_request_larger_than_the_cache_is_refused_and_takes_the_others_back(
    make_llm: Callable[..., LLM],
) -> None:
    llm = make_llm(num_gpu_blocks_override=9, max_model_len=64)
    small, large = SamplingParams(max_tokens=4), SamplingParams(max_tokens=50)
    with pytest.raises(ValueError, match="need 14 blocks, and the whole KV cache has 8"):
        llm.generate([[5] * 4, [5] * 4], [small, large])
    assert_idle(llm)


def test_an_engine_argument_with_a_typing_error_names_the_right_one(model_dir: Any) -> None:
    with pytest.raises(ConfigError, match="'max_modle_len'; did you mean 'max_model_len'"):
        LLM(str(model_dir), max_modle_len=64)


def test_a_model_without_a_tokenizer_fails_before_the_weights_are_loaded(
    make_llm: Callable[..., LLM], tmp_path: Any, model_dir: Any
) -> None:
    (tmp_path / "config.json").write_text((model_dir / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"no tokenizer.json .* skip_tokenizer_init=True"):
        make_llm(model=str(tmp_path))
    blind = make_llm(model=str(tmp_path), skip_tokenizer_init=True)
    (output,) = blind.generate([[5, 6]], GREEDY)
    assert output.outputs[0].text == "" and len(output.outputs[0].token_ids) == 8
    with pytest.raises(ValueError, match="skip_tokenizer_init=True"):
        blind.get_tokenizer()


def test_a_tokenizer_may_come_from_another_folder(
    make_llm: Callable[..., LLM], tmp_path: Any, model_dir: Any
) -> None:
    (tmp_path / "config.json").write_text((model_dir / "config.json").read_text())
    llm = make_llm(model=str(tmp_path), tokenizer=str(model_dir))
    assert len(llm.get_tokenizer().encode("hello")) == 1


# Interruptions


def interrupt_in_step(llm: LLM, monkeypatch: pytest.MonkeyPatch, number: int, times: int = 1) -> None:
    """Press Ctrl-C in the middle of the given step, while the model computes."""
    executor = llm.llm_engine.engine_core.executor
    steps = iter(range(1_000_000))
    execute = executor.submit

    def execute_and_press(out: Any, _bitmask: Any) -> Any:
        if next(steps) == number:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return execute(out)

    monkeypatch.setattr(executor, "submit", execute_and_press)


def test_ctrl_c_aborts_all_requests_and_leaves_the_engine_usable(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = texts(llm.generate(["hello", "the cat"], GREEDY))
    interrupt_in_step(llm, monkeypatch, number=3)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["hello", "the cat", "sat"] * 5, SamplingParams(n=2, max_tokens=50, ignore_eos=True))
    assert_idle(llm)
    assert texts(llm.generate(["hello", "the cat"], GREEDY)) == expected


def test_ctrl_c_in_one_call_leaves_an_open_stream_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = texts(llm.generate("hello", GREEDY))
    stream = llm.stream("hello", GREEDY)
    streamed = next(stream).outputs[0].text
    interrupt_in_step(llm, monkeypatch, number=2)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("the cat", SamplingParams(max_tokens=50, ignore_eos=True))
    streamed += "".join(delta.outputs[0].text for delta in stream)
    assert [streamed] == expected
    assert_idle(llm)


def test_a_second_ctrl_c_drops_every_request_and_the_engine_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = texts(llm.generate("hello", GREEDY))
    stream = llm.stream("hello", GREEDY)
    next(stream)
    interrupt_in_step(llm, monkeypatch, number=2, times=2)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("the cat", SamplingParams(max_tokens=50, ignore_eos=True))
    with pytest.raises(RuntimeError, match="pressed twice in another call"):
        list(stream)
    assert_idle(llm)
    assert texts(llm.generate("hello", GREEDY)) == expected


def test_a_second_ctrl_c_does_not_wait() -> None:
    reached_end = False
    with pytest.raises(KeyboardInterrupt), interrupt_afterwards():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        reached_end = True
    assert not reached_end
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_ctrl_c_stays_ignored_in_a_step() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_afterwards() as may_end_here:
            signal.raise_signal(signal.SIGINT)
            may_end_here()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_failing_step_raises_its_cause_and_the_engine_says_that_it_is_dead(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_out: Any, _bitmask: Any) -> Any:
        raise ZeroDivisionError("a broken kernel")

    monkeypatch.setattr(llm.llm_engine.engine_core.executor, "submit", fail)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="a broken kernel") as failure:
            llm.generate("hello", GREEDY)
        assert isinstance(failure.value.__cause__, ZeroDivisionError)


def test_after_shutdown_requests_are_refused_and_shutting_down_again_does_nothing(
    settings: dict[str, Any],
) -> None:
    with LLM(**settings) as llm:
        llm.generate("hello", GREEDY)
    llm.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        llm.generate("hello", GREEDY)


# Progress


def test_the_progress_bar_shows_speeds_as_vllms(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["hello", "the cat"], GREEDY, use_tqdm=True)
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown and "2/2" in shown
    assert "est. speed input:" in shown and "toks/s, output:" in shown


@pytest.mark.parametrize("use_tqdm", [None, False])
def test_a_short_call_shows_no_progress_bar(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, use_tqdm: bool | None
) -> None:
    monkeypatch.setattr("engine.llm._QUIET_S", 1e9)
    llm.generate("hello", GREEDY, use_tqdm=use_tqdm)
    assert capsys.readouterr().err == ""
