"""Suffix decoding against the obvious search over all occurrences."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import LLM, SamplingParams
from engine.config import ConfigError, SpeculativeConfig
from engine.spec.suffix import MOST_OCCURRENCES, FinishedOutputs, SuffixIndex, SuffixLimits

tokens = st.lists(st.integers(0, 2), min_size=2, max_size=24)
Draft = tuple[list[int], float]


def obvious(text: list[int], ending: list[int], most: int, limits: SuffixLimits) -> Draft:
    """Try every length of the ending, and count what followed its occurrences."""
    best: Draft = ([], 0.0)
    for length in range(len(ending), 1, -1):
        places = [
            end
            for end in range(length, len(text))
            if text[end - length : end] == ending[len(ending) - length :]
        ]
        count = min(most, int(limits.max_spec_factor * length), limits.max_tree_depth - length)
        drafts: list[int] = []
        probability, expected = 1.0, 0.0
        while len(drafts) < count:
            following = Counter(text[place] for place in places if place < len(text))
            if not following:
                break
            token, hits = following.most_common(1)[0]
            probability *= hits / len(places)
            if probability < limits.min_token_prob:
                break
            drafts.append(token)
            expected += probability
            places = [place + 1 for place in places if place < len(text) and text[place] == token]
        if expected > best[1]:
            best = (drafts, expected)
    return best


@settings(max_examples=300)
@given(tokens, st.integers(1, 8), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.0, 0.3, 0.9]))
def test_drafts_follow_the_most_frequent_continuation_of_the_best_ending(
    text: list[int], most: int, factor: float, min_prob: float
) -> None:
    assert len(text) <= MOST_OCCURRENCES
    limits = SuffixLimits(8, factor, min_prob)
    index = SuffixIndex()
    index.extend(text)
    ending = text[-limits.max_tree_depth :]
    assert index.draft(ending, most, limits)[1] == pytest.approx(obvious(text, ending, most, limits)[1])


def test_the_length_of_a_draft_adapts_to_the_match_and_to_agreement() -> None:
    limits = SuffixLimits(24, 1.0, 0.6)
    index = SuffixIndex()
    index.extend([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert index.draft([1, 2], 8, limits)[0] == [3, 4], "two tokens match, so two are drafted"
    assert index.draft([1, 2, 3, 4], 8, limits)[0] == [5, 6, 7, 8]
    index.extend([-1, 1, 2, 3, 5])
    assert index.draft([1, 2, 3], 8, limits)[0] == [], "4 and 5 followed once each: 0.5 is below 0.6"


def test_a_border_is_neither_matched_nor_drafted() -> None:
    outputs = FinishedOutputs(10)
    outputs.add([1, 2])
    outputs.add([3, 4])
    limits = SuffixLimits(24, 4.0, 0.1)
    assert outputs.index.draft([1, 2], 4, limits) == ([], 0.0)
    assert outputs.index.draft([2, 3], 4, limits) == ([], 0.0)


def test_the_oldest_outputs_leave_and_the_memory_stays_bounded() -> None:
    outputs, limits = FinishedOutputs(3), SuffixLimits(24, 1.0, 0.1)
    for number in range(50):
        outputs.add([100 + number, 200 + number, 300 + number])
        assert len(outputs.index) <= 2 * 3 * 4
    assert outputs.index.draft([149, 249], 4, limits)[0] == [349]
    assert outputs.index.draft([110, 210], 4, limits)[0] == []
    none = FinishedOutputs(0)
    none.add([1, 2, 3])
    assert len(none.index) == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"suffix_decoding_min_token_prob": 1.5}, "from 0 to 1, got 1.5"),
        ({"suffix_decoding_max_spec_factor": -1}, "at least 0, got -1"),
        ({"suffix_decoding_max_cached_requests": -1}, "at least 0, got -1"),
        ({"suffix_decoding_max_tree_depth": 0}, "at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(value: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SpeculativeConfig.from_args({"method": "suffix", **value})


def test_the_tree_depth_bounds_the_drafts_by_default() -> None:
    config = SpeculativeConfig.from_args({"model": "suffix", "suffix_decoding_max_tree_depth": 16})
    assert config is not None and (config.method, config.num_speculative_tokens) == ("suffix", 16)


@pytest.mark.slow
def test_a_second_sample_is_drafted_from_the_first_ones_answer() -> None:
    """Answers stay those of the plain engine, greedy and seeded; repeated tasks take fewer steps than with ngram."""
    prompts = ["Please order Silver Harbor for me."] * 6
    params = [
        SamplingParams(temperature=0.5 * (i % 2), seed=i, max_tokens=24, ignore_eos=True) for i in range(6)
    ]
    steps: dict[str, int] = {}
    answers = {}
    for name in ("plain", "ngram", "suffix"):
        config = None if name == "plain" else {"method": name, "num_speculative_tokens": 8}
        with LLM("shop", max_num_seqs=1, num_gpu_blocks_override=64, speculative_config=config) as llm:
            core = llm.llm_engine.engine_core
            step, counted = core.step, []
            core.step = lambda step=step, counted=counted: (counted.append(1), step())[1]
            outputs = llm.generate(prompts, params, use_tqdm=False)
            answers[name] = [list(output.outputs[0].token_ids) for output in outputs]
            steps[name] = len(counted)
    assert answers["suffix"] == answers["ngram"] == answers["plain"]
    assert steps["suffix"] < steps["ngram"] <= steps["plain"]
