"""Valid and rejected values of `speculative_config`."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import ConfigError, EngineArgs, SpeculativeConfig
from engine.resolve import check_args
from engine.spec.base import drafter_class


def test_a_dict_its_json_and_the_object_mean_the_same() -> None:
    asked = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    config = SpeculativeConfig.from_args(asked)
    assert config == SpeculativeConfig("ngram", 3, None, 2, 4)
    text = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
    assert SpeculativeConfig.from_args(text) == config
    assert SpeculativeConfig.from_args(None) is None


@pytest.mark.parametrize(
    ("model", "method"),
    [("ngram", "ngram"), ("[ngram]", "ngram"), ("shop-eagle", "eagle"), ("shop-draft", "draft_model")],
)
def test_a_model_alone_says_the_method(model: str, method: str) -> None:
    assert SpeculativeConfig.from_args({"model": model}).method == method


@pytest.mark.parametrize(
    ("lookup", "both"), [({"prompt_lookup_max": 1}, (1, 1)), ({"prompt_lookup_min": 7}, (7, 7))]
)
def test_one_lookup_length_draws_the_other_along(lookup: dict[str, int], both: tuple[int, int]) -> None:
    config = SpeculativeConfig.from_args({"method": "ngram", **lookup})
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == both


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{method: ngram}", "not valid JSON"),
        ("[1]", "must be like"),
        ({}, "needs a method or a model"),
        ({"method": "ngrams"}, "did you mean 'ngram'"),
        ({"method": 3}, "must be text"),
        ({"method": "ngram", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "at least 1, got 0"),
        ({"method": "ngram", "num_speculative_tokens": True}, "at least 1, got True"),
        ({"method": "ngram", "prompt_lookup_min": 6, "prompt_lookup_max": 3}, "no ending fits"),
        ({"method": "ngram", "prompt_lookup_max": "5"}, "got '5'"),
        ({"method": "ngram", "verifier": "typical"}, "coupling, rejection"),
        ({"method": "ngram", "disable_by_batch_size": 0}, "disable_by_batch_size"),
        ({"method": "draft_model"}, '"model": "shop-draft"'),
        ({"method": "eagle"}, '"model": "shop-eagle"'),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        SpeculativeConfig.from_args(value)


def test_drafts_and_tensor_parallelism_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="one worker"):
        check_args(EngineArgs(speculative_config={"method": "ngram"}, tensor_parallel_size=2))


@pytest.mark.parametrize(
    "path", ["no.such.module:Class", "engine.spec.ngram:Missing", "engine.spec.ngram:np"]
)
def test_a_drafter_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        drafter_class(path)
