from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import CacheConfig, EngineConfig, ModelConfig, RopeConfig, SchedulerConfig
from engine.core.request import Request
from engine.frontend.input_processor import InputProcessor, InvalidRequestError
from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams

VOCAB_SIZE = 328
MAX_MODEL_LEN = 32


def config(policy: str = "fcfs", **args: Any) -> EngineConfig:
    model = ModelConfig(
        model="tiny",
        path=Path(),
        architecture="LlamaForCausalLM",
        dtype="float32",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope=RopeConfig(1e4),
        max_position_embeddings=64,
        eos_token_ids=(1, 7),
    )
    scheduler = SchedulerConfig(64, max_num_seqs=4, max_model_len=MAX_MODEL_LEN, policy=policy)
    return EngineConfig(model, CacheConfig(num_blocks=16), scheduler, **args)


@pytest.fixture
def processor(byte_level: Tokenizer) -> InputProcessor:
    return InputProcessor(config(), byte_level)


def request(processor: InputProcessor, prompt: Any = "hello", **params: Any) -> Request:
    """The core's request for a prompt with n = 1."""
    (child,) = processor.process("r", prompt, SamplingParams(**params)).children
    return child


def test_every_way_to_write_a_prompt_is_the_same_request(
    processor: InputProcessor, byte_level: Tokenizer
) -> None:
    ids = byte_level.encode("hello")
    numpy_ids = np.array(ids)
    for prompt in ("hello", ids, tuple(ids), numpy_ids, {"prompt": "hello"}, {"prompt_token_ids": ids}):
        assert request(processor, prompt).prompt_token_ids == ids


def test_chat_messages_become_the_templates_text_without_a_second_beginning(
    processor: InputProcessor, byte_level: Tokenizer
) -> None:
    prompt = processor.chat_prompt([{"role": "user", "content": "hello"}])
    submitted = processor.process("r", prompt, SamplingParams())
    assert submitted.prompt == "<|user|>hello</s><|assistant|>"
    assert byte_level.decode(submitted.prompt_token_ids) == submitted.prompt


def test_a_chat_begins_once(sentencepiece: Tokenizer) -> None:
    processor = InputProcessor(config(), sentencepiece)
    prompt = processor.chat_prompt(
        [{"role": "user", "content": "cat"}], chat_template="{{ bos_token }}{{ messages[0].content }}"
    )
    assert prompt["prompt_token_ids"].count(sentencepiece.bos_token_id) == 1


def test_text_is_reported_back_and_ids_alone_are_not_decoded(processor: InputProcessor) -> None:
    assert processor.process("r", "hello", SamplingParams()).prompt == "hello"
    assert processor.process("r", [5, 6], SamplingParams()).prompt is None
    both = {"prompt": "shown", "prompt_token_ids": [5, 6]}
    assert processor.process("r", both, SamplingParams()).prompt == "shown"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ({"prompt_token_ids": []}, "prompt is empty"),
        ([VOCAB_SIZE], f"{VOCAB_SIZE}, which is not in the model's vocabulary .0 to {VOCAB_SIZE - 1}"),
        ([-1], "not in the model's vocabulary"),
        ([5] * MAX_MODEL_LEN, "maximum context length is 32 tokens .* the prompt has 32;"),
        ([1.0], "integers, got 1.0"),
        ([True], "integers, got True"),
        (["a"], "integers, got 'a'"),
        (5, "text or a list of token ids, got 5"),
        (b"hello", "text or a list of token ids"),
        (None, "text or a list of token ids, got None"),
        ({"promt": "hello"}, r"got the keys \['promt'\]"),
        ({"cache_salt": "x"}, "got the keys"),
        ({"prompt": 5}, "text or a list of token ids, got 5"),
        ({"prompt": "hello", "cache_salt": ""}, "cache_salt"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_at_the_door(
    processor: InputProcessor, prompt: Any, expected: str
) -> None:
    with pytest.raises(InvalidRequestError, match=expected):
        request(processor, prompt)


def test_the_longest_prompt_leaves_room_for_one_token(processor: InputProcessor) -> None:
    child = request(processor, [5] * (MAX_MODEL_LEN - 1), max_tokens=None)
    assert child.sampling_params.max_tokens == 1


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids holds 328"),
        ({"allowed_token_ids": [5, VOCAB_SIZE]}, "allowed_token_ids holds 328"),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias holds 328"),
        ({"logprobs": 21}, "logprobs must be at most 20, got 21; .*max_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be at most 20, got -1"),
        (
            {"min_tokens": 40, "max_tokens": 50},
            "min_tokens is 40, but a prompt of 1 token leaves room for 31",
        ),
    ],
)
def test_parameters_that_do_not_fit_the_model_are_refused_at_the_door(
    processor: InputProcessor, params: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidRequestError, match=expected):
        request(processor, [5], **params)


def test_all_logprobs_may_be_asked_for_when_the_engine_allows_it(byte_level: Tokenizer) -> None:
    processor = InputProcessor(config(max_logprobs=-1), byte_level)
    assert request(processor, logprobs=-1).sampling_params.logprobs == VOCAB_SIZE


def test_the_callers_parameters_stay_as_they_are(processor: InputProcessor) -> None:
    params = SamplingParams(max_tokens=None, bad_words=["cat"], n=2)
    before = repr(params)
    submitted = processor.process("r", "hello", params)
    assert repr(params) == before and submitted.params is params
    assert submitted.children[0].sampling_params.bad_words_token_ids and not params.bad_words_token_ids


def test_max_tokens_none_means_up_to_the_models_length(processor: InputProcessor) -> None:
    assert request(processor, [5, 6], max_tokens=None).sampling_params.max_tokens == MAX_MODEL_LEN - 2


def test_the_end_of_sequence_tokens_are_the_models_and_the_tokenizers(processor: InputProcessor) -> None:
    assert request(processor).eos_token_ids == {1, 7}


def test_bad_words_are_banned_at_the_start_and_after_a_space(
    processor: InputProcessor, byte_level: Tokenizer
) -> None:
    spelled = request(processor, bad_words=["cat", "the cat"]).sampling_params.bad_words_token_ids
    words = [byte_level.decode(ids) for ids in spelled]
    assert "cat" in words and "the cat" in words
    for ids in spelled:
        assert byte_level.decode(ids).strip() in ("cat", "the cat")


def test_a_lone_space_before_a_bad_word_is_not_banned_with_it(processor: InputProcessor) -> None:
    """ "Q" is one token and " Q" is two: the second spelling would only repeat the first."""
    assert len(request(processor, bad_words=["Q"]).sampling_params.bad_words_token_ids) == 1


def test_without_a_tokenizer_only_ids_are_served() -> None:
    processor = InputProcessor(config(), None)
    assert request(processor, [5]).prompt_token_ids == [5]
    for prompt, params in (("hello", {}), ([5], {"stop": "x"}), ([5], {"bad_words": ["x"]})):
        with pytest.raises(InvalidRequestError, match="skip_tokenizer_init=True"):
            request(processor, prompt, **params)


def test_seeds_are_the_callers_or_drawn_from_the_engines(byte_level: Tokenizer) -> None:
    first, second = (InputProcessor(config(seed=5), byte_level) for _ in range(2))
    drawn = [request(first).seed for _ in range(3)]
    assert drawn == [request(second).seed for _ in range(3)] and len(set(drawn)) == 3
    assert drawn[0] != request(InputProcessor(config(seed=6), byte_level)).seed
    assert request(first, seed=42).seed == 42
    assert 0 <= request(first, seed=-(2**63)).seed < 2**63


def test_n_completions_are_children_with_their_own_ids_and_seeds(processor: InputProcessor) -> None:
    submitted = processor.process("r", {"prompt": "hello", "cache_salt": "me"}, SamplingParams(n=3, seed=7))
    assert [child.request_id for child in submitted.children] == ["0_r", "1_r", "2_r"]
    assert [child.seed for child in submitted.children] == [7, 8, 9]
    assert all(child.sampling_params.n == 1 and child.cache_salt == "me" for child in submitted.children)
    assert len({id(child.token_ids) for child in submitted.children}) == 3


def test_only_the_first_child_computes_prompt_logprobs(processor: InputProcessor) -> None:
    children = processor.process("r", "hello", SamplingParams(n=2, prompt_logprobs=1)).children
    assert [child.sampling_params.prompt_logprobs for child in children] == [1, None]
    assert [child.sampling_params.skip_reading_prefix_cache for child in children] == [True, False]


def test_a_priority_that_would_be_ignored_is_refused(byte_level: Tokenizer) -> None:
    params = SamplingParams()
    for policy, priority, expected in (("fcfs", 1, "would be ignored"), ("priority", "high", "an integer")):
        with pytest.raises(InvalidRequestError, match=expected):
            InputProcessor(config(policy), byte_level).process("r", "hello", params, priority=priority)
    submitted = InputProcessor(config("priority"), byte_level).process("r", "hello", params, priority=-3)
    assert submitted.children[0].priority == -3
