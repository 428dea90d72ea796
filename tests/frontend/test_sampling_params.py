from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from engine.sampling_params import RequestOutputKind, SamplingParams

NAN, INF = float("nan"), float("inf")


def test_the_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (16, 0, None, None)
    assert (params.stop, params.stop_token_ids, params.bad_words) == ([], [], [])
    assert params.output_kind is RequestOutputKind.CUMULATIVE
    assert params.detokenize and params.skip_special_tokens and not params.ignore_eos


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("n", 0, ">= 1"),
        ("n", 1.5, "integer"),
        ("n", True, "integer"),
        ("presence_penalty", 2.1, ">= -2 and <= 2"),
        ("frequency_penalty", NAN, "finite"),
        ("repetition_penalty", 0, "> 0"),
        ("temperature", -0.1, ">= 0"),
        ("temperature", INF, "finite"),
        ("temperature", "hot", "number"),
        ("temperature", True, "number"),
        ("temperature", None, "number"),
        ("top_p", 0, "> 0 and <= 1"),
        ("top_p", 1.01, "<= 1"),
        ("top_k", -2, ">= -1"),
        ("min_p", 1.5, "<= 1"),
        ("seed", 2**63, "<= 9223372036854775807"),
        ("seed", "7", "integer"),
        ("max_tokens", 0, ">= 1"),
        ("min_tokens", -1, ">= 0"),
        ("min_tokens", 17, "at most max_tokens"),
        ("logprobs", -2, ">= -1"),
        ("logprobs", True, "integer"),
        ("prompt_logprobs", 0.5, "integer"),
        ("stop", "", "not empty"),
        ("stop", ["a", 3], "strings"),
        ("stop", 3, "list of strings"),
        ("stop_token_ids", "12", "list of token ids"),
        ("stop_token_ids", [1.0], "token ids"),
        ("stop_token_ids", [-1], ">= 0"),
        ("stop_token_ids", 5, "list of token ids"),
        ("allowed_token_ids", [], "must not be empty"),
        ("logit_bias", [1], "map token ids"),
        ("logit_bias", {"x": 1}, "token ids"),
        ("logit_bias", {1: 101}, "<= 100"),
        ("logit_bias", {1: NAN}, "finite"),
        ("bad_words", "word", "list of strings"),
        ("bad_words", [""], "not empty"),
        ("ignore_eos", 1, "True or False"),
        ("detokenize", None, "True or False"),
        ("output_kind", "delta", "RequestOutputKind.DELTA"),
    ],
)
def test_a_wrong_value_is_refused_with_the_field_and_the_range(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=name) as refusal:
        SamplingParams(**{name: value})
    assert expected in str(refusal.value)
    if not isinstance(value, (list, dict)):
        assert repr(value) in str(refusal.value)


def test_an_unknown_name_is_refused_with_the_closest_one() -> None:
    with pytest.raises(ValueError, match="'temprature'; did you mean 'temperature'"):
        SamplingParams(temprature=0.5)
    with pytest.raises(ValueError, match="'guided_grammar'; known: n, best_of, presence_penalty"):
        SamplingParams.create(guided_grammar="x")


def test_combinations_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="n must be 1 when temperature is 0"):
        SamplingParams(n=2, temperature=0)
    with pytest.raises(ValueError, match="detokenize=True"):
        SamplingParams(stop=["x"], detokenize=False)


def test_stop_may_be_one_string_and_json_may_write_token_ids_as_strings() -> None:
    assert SamplingParams(stop="end").stop == ["end"]
    assert SamplingParams(logit_bias={"7": 1}).logit_bias == {7: 1.0}


def test_minus_one_means_a_drawn_seed() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=0).seed == 0


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache is True
    assert (
        SamplingParams(prompt_logprobs=0, skip_reading_prefix_cache=False).skip_reading_prefix_cache is False
    )
    assert SamplingParams().skip_reading_prefix_cache is False


def test_parameters_can_be_copied_pickled_and_changed() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], seed=3)
    assert pickle.loads(pickle.dumps(params)) == params == copy.deepcopy(params)
    assert replace(params, n=2).stop == ["a"]


def test_importing_them_needs_no_tensor_library() -> None:
    code = "import sys, engine.sampling_params, engine.outputs; print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
