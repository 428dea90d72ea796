"""Drafts never change the tokens of a request."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.engine_core import EngineCore
from kernels.cpu import build
from tests.engine.drafters import PATH, Scripted, counted_run
from tests.engine.harness import TINY_LLAMA, VOCAB_SIZE, request, run, tokens

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)  # other kernels round by the number of tokens in a row

MakeEngine = Callable[..., EngineCore]
K = 4
NGRAM = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_min": 1}
SCRIPTED = {"method": PATH, "num_speculative_tokens": K}
MEDUSA = {
    "architectures": ["MedusaModel"],
    "model_type": "medusa",
    "hidden_size": TINY_LLAMA["hidden_size"],
    "vocab_size": VOCAB_SIZE,
    "num_heads": K,
    "num_hidden_layers": 2,
}
HEAD = {**TINY_LLAMA, "architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1}


@pytest.fixture(autouse=True)
def fresh_script() -> Iterator[None]:
    yield
    Scripted.answers, Scripted.wrong_every = {}, 0


@pytest.fixture(scope="module")
def head_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-eagle")
    (folder / "config.json").write_text(json.dumps(HEAD))
    return folder


@pytest.fixture(scope="module")
def medusa_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-medusa")
    (folder / "config.json").write_text(json.dumps(MEDUSA))
    return folder


@pytest.fixture
def drafters(model_dir: Path, head_dir: Path, medusa_dir: Path) -> dict[str, dict[str, Any]]:
    """Every shipped method. The draft model has the target's own weights: it is always right."""
    return {
        "ngram": NGRAM,
        "suffix": {"method": "suffix", "num_speculative_tokens": K, "suffix_decoding_max_spec_factor": 2.0},
        "draft_model": {"method": "draft_model", "model": str(model_dir), "num_speculative_tokens": K},
        "eagle": {"method": "eagle", "model": str(head_dir), "num_speculative_tokens": K},
        "medusa": {"method": "medusa", "model": str(medusa_dir), "num_speculative_tokens": K},
    }


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    words = [rng.randrange(2, VOCAB_SIZE) for _ in range(5)]
    return [rng.choice(words) for _ in range(length)]


def mixture() -> list[Request]:
    """One of everything that edits logits, draws noise or reports them; prompts that share blocks, and that do not."""
    asks: list[dict[str, Any]] = [
        {},
        {"logprobs": 3},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.8, "top_k": 20, "logprobs": 0},
        {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.3},
        {"presence_penalty": 0.8, "frequency_penalty": 0.5},
        {"temperature": 1.2, "frequency_penalty": 1.0, "logprobs": 2},
        {"min_tokens": 6, "ignore_eos": False, "stop_token_ids": list(range(40, 90))},
        {"bad_words_token_ids": [[3], [5, 7], [60, 61]], "temperature": 1.0},
        {"logit_bias": {9: 4.0, 30: -100.0}, "temperature": 0.5},
        {"allowed_token_ids": list(range(2, 20)), "temperature": 1.0},
        {"prompt_logprobs": 1, "logprobs": 1},
    ]
    return [
        request(
            str(index),
            prompt(9, 1)[: 4 + index % 6] + prompt(6 + index, index),
            seed=index,
            max_tokens=16,
            **ask,
        )
        for index, ask in enumerate(asks)
    ]


def said(outputs: dict[str, list[EngineCoreOutput]]) -> dict[str, Any]:
    """All that a client can see, whichever step brought it."""
    return {
        name: (
            [token for output in outs for token in output.new_token_ids],
            [entry for output in outs for entry in output.logprobs or ()],
            [entry for output in outs for entry in output.prompt_logprobs or ()],
            outs[-1].finish_reason,
            outs[-1].stop_reason,
        )
        for name, outs in outputs.items()
    }


@pytest.fixture(scope="module")
def without_drafts(make_engine: MakeEngine) -> dict[str, list[EngineCoreOutput]]:
    return run(make_engine(), mixture())


@pytest.fixture(scope="module")
def expected(without_drafts: dict[str, list[EngineCoreOutput]]) -> dict[str, Any]:
    return said(without_drafts)


PRESSURE = {
    "plenty": {},
    "prompts_in_chunks": {"max_num_batched_tokens": 7, "max_num_seqs": 4},
    "a_budget_that_cuts_drafts": {"max_num_batched_tokens": 3, "max_num_seqs": 2},
    "preemptions": {"num_gpu_blocks_override": 24},
    "no_prefix_cache": {"enable_prefix_caching": False},
    "no_replays": {"enforce_eager": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("pressure", PRESSURE)
@pytest.mark.parametrize("wrong_every", [0, 1, 2, 3])
def test_everything_is_said_as_without_drafts(
    make_engine: MakeEngine,
    without_drafts: dict[str, list[EngineCoreOutput]],
    expected: dict[str, Any],
    pressure: str,
    wrong_every: int,
) -> None:
    """wrong_every: 0 accepts all drafts, 1 none, the others some."""
    engine = make_engine(speculative_config=SCRIPTED, **PRESSURE[pressure])
    Scripted.learn(mixture(), without_drafts)
    Scripted.wrong_every = wrong_every
    for _ in range(2):  # the second time with the prompts' blocks in the prefix cache
        outputs, counted = counted_run(engine, mixture())
        assert said(outputs) == expected
    assert counted.num_draft_tokens > 0
    assert (counted.num_accepted_tokens == 0) == (wrong_every == 1)
    if pressure == "preemptions":
        assert any(outs[-1].num_preemptions for outs in outputs.values())
    assert engine.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("pressure", ["plenty", "prompts_in_chunks", "preemptions", "no_replays"])
@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "eagle", "medusa"])
def test_every_drafter_leaves_the_tokens_alone(
    make_engine: MakeEngine,
    drafters: dict[str, dict[str, Any]],
    expected: dict[str, Any],
    method: str,
    pressure: str,
) -> None:
    engine = make_engine(speculative_config=drafters[method], **PRESSURE[pressure])
    for _ in range(2):
        outputs, counted = counted_run(engine, mixture())
        assert said(outputs) == expected
    assert counted.num_draft_tokens > 0


def test_several_samples_of_one_prompt_are_those_without_drafts(make_engine: MakeEngine) -> None:
    def work() -> list[Request]:
        return [request(str(i), prompt(18, 3), seed=i, temperature=1.0, max_tokens=20) for i in range(4)]

    assert tokens(run(make_engine(speculative_config=NGRAM), work())) == tokens(run(make_engine(), work()))


@pytest.mark.parametrize("pressure", ["plenty", "prompts_in_chunks", "preemptions"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_with_the_targets_weights_is_always_right(
    make_engine: MakeEngine, drafters: dict[str, dict[str, Any]], pressure: str, temperature: float
) -> None:
    """So its KV is right too: behind prefix hits, after preemptions, whatever was accepted before."""
    engine = make_engine(speculative_config=drafters["draft_model"], **PRESSURE[pressure])

    def work() -> list[Request]:
        return [
            request(str(i), prompt(13 + i, i), seed=i, temperature=temperature, max_tokens=24)
            for i in range(6)
        ]

    for attempt in range(2):
        outputs, counted = counted_run(engine, work())
        assert counted.num_accepted_tokens == counted.num_draft_tokens > 0
        assert (
            attempt == 0
            or pressure != "plenty"
            or all(outs[-1].num_cached_tokens for outs in outputs.values())
        )
    if pressure == "preemptions":
        assert any(outs[-1].num_preemptions for outs in outputs.values())


def test_an_eagle_heads_drafts_are_the_same_behind_a_prefix_hit(
    make_engine: MakeEngine, drafters: dict[str, dict[str, Any]]
) -> None:
    """The last block of the hit is computed again: its end was computed with another token behind it."""

    def drafts_of(engine: EngineCore, item: Request) -> tuple[list[list[int]], int]:
        drafter = engine.executor.worker.runner._speculator.drafter
        propose, found = drafter.propose, []
        drafter.propose = lambda step: found.append(propose(step)) or found[-1]
        outputs = run(engine, [item])
        drafter.propose = propose
        return [drafts for step in found for drafts in step if drafts], outputs[item.request_id][
            -1
        ].num_cached_tokens

    shared = prompt(16, 5)  # four blocks
    cold, hit = drafts_of(make_engine(speculative_config=drafters["eagle"]), request("b", [*shared, 77, 78]))
    assert hit == 0
    engine = make_engine(speculative_config=drafters["eagle"])
    run(engine, [request("a", [*shared, 33, 34])])
    warm, hit = drafts_of(engine, request("b", [*shared, 77, 78]))
    assert hit == 12 and warm == cold and len(cold) > 2


def test_what_follows_an_end_inside_accepted_drafts_never_existed(make_engine: MakeEngine) -> None:
    item = request("a", prompt(9, 1), max_tokens=20)
    Scripted.learn([item], run(make_engine(), [item]))
    answer = Scripted.answers[tuple(item.prompt_token_ids)]
    for place in range(1, 8):
        stop = answer[place]
        outputs = run(
            make_engine(speculative_config=SCRIPTED),
            [request("a", item.prompt_token_ids, max_tokens=20, stop_token_ids=[stop])],
        )
        assert tokens(outputs)["a"] == answer[: answer.index(stop) + 1]
        assert (outputs["a"][-1].finish_reason, outputs["a"][-1].stop_reason) == ("stop", stop)


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_drafts_never_reach_beyond_max_tokens(make_engine: MakeEngine, max_tokens: int) -> None:
    item = request("a", prompt(9, 1), max_tokens=20)
    Scripted.learn([item], run(make_engine(), [item]))
    outputs = run(
        make_engine(speculative_config=SCRIPTED), [request("a", item.prompt_token_ids, max_tokens=max_tokens)]
    )
    assert tokens(outputs)["a"] == Scripted.answers[tuple(item.prompt_token_ids)][:max_tokens]
    assert outputs["a"][-1].finish_reason == "length"


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "eagle", "scripted"])
def test_drafts_never_reach_beyond_max_model_len(
    make_engine: MakeEngine, drafters: dict[str, dict[str, Any]], method: str
) -> None:
    item = request("a", prompt(20, 1), max_tokens=100)
    plain = run(make_engine(max_model_len=33), [item])
    Scripted.learn([item], plain)
    config = drafters.get(method, SCRIPTED)
    outputs = run(
        make_engine(max_model_len=33, speculative_config=config),
        [request("a", item.prompt_token_ids, max_tokens=100)],
    )
    assert said(outputs) == said(plain) and len(tokens(outputs)["a"]) == 13


def test_full_acceptance_takes_a_fifth_of_the_steps_and_counts_every_position(
    make_engine: MakeEngine,
) -> None:
    item = request("a", prompt(9, 1), max_tokens=21)
    Scripted.learn([item], run(make_engine(), [item]))
    _, counted = counted_run(
        make_engine(speculative_config=SCRIPTED), [request("a", item.prompt_token_ids, max_tokens=21)]
    )
    assert counted.num_steps == 1 + 4  # the prompt and its token, then 4 x (4 drafts + 1)
    assert (counted.num_drafts, counted.num_draft_tokens, counted.per_pos) == (4, 16, [4, 4, 4, 4])


def test_partial_acceptance_is_counted_by_position(make_engine: MakeEngine) -> None:
    item = request("a", prompt(9, 1), max_tokens=12)
    Scripted.learn([item], run(make_engine(), [item]))
    Scripted.wrong_every = 3  # positions 12, 15, 18: two right ones, then a wrong one
    _, counted = counted_run(
        make_engine(speculative_config=SCRIPTED), [request("a", item.prompt_token_ids, max_tokens=12)]
    )
    assert len(counted.per_pos) == 2 and counted.num_drafts >= counted.per_pos[0] >= counted.per_pos[1] > 0
    assert sum(counted.per_pos) == counted.num_accepted_tokens < counted.num_draft_tokens


def test_aborted_requests_leave_nothing_behind(
    make_engine: MakeEngine, drafters: dict[str, dict[str, Any]]
) -> None:
    for config in drafters.values():
        engine = make_engine(speculative_config=config)
        rng = random.Random(0)
        for item in mixture():
            engine.add_request(item)
        while engine.has_unfinished():
            engine.step()
            alive = list(engine.scheduler.requests)
            if alive and rng.random() < 0.4:
                engine.abort([rng.choice(alive)])
            engine.scheduler.check_integrity()
        assert engine.scheduler.kv.pool.num_used == 0


def test_verification_is_replayed_and_has_the_bits_of_ordinary_steps(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels.cpu.graph import CPUGraph

    replays = []
    replay = CPUGraph.replay
    monkeypatch.setattr(CPUGraph, "replay", lambda graph: replays.append(graph) or replay(graph))
    work = [request(str(i), prompt(9, i), max_tokens=40, logprobs=5) for i in range(3)]
    Scripted.learn(work, run(make_engine(), work))
    replays.clear()
    engines = [make_engine(speculative_config=SCRIPTED, enforce_eager=eager) for eager in (False, True)]
    results = [
        said(run(engine, [request(str(i), prompt(9, i), max_tokens=40, logprobs=5) for i in range(3)]))
        for engine in engines
    ]
    assert results[0] == results[1] and len(replays) > 3


def test_adaptive_drafts_grow_shorter_while_they_fail_and_no_batch_above_the_limit_gets_any(
    make_engine: MakeEngine,
) -> None:
    work = mixture()[:3]
    Scripted.learn(work, run(make_engine(), work))
    Scripted.wrong_every = 1
    rates = []
    for extra in ({}, {"adaptive": True}, {"disable_by_batch_size": 2}):
        engine = make_engine(speculative_config={**SCRIPTED, **extra})
        outputs, counted = counted_run(engine, mixture()[:3])
        assert tokens(outputs) == {
            item.request_id: Scripted.answers[tuple(item.prompt_token_ids)] for item in work
        }
        rates.append(counted.num_draft_tokens)
    assert rates[1] < rates[0] / 2
    assert rates[2] <= K  # only when the first of the three was done


def test_a_drafter_that_breaks_its_contract_is_named(make_engine: MakeEngine) -> None:
    item = request("a", prompt(9, 1), max_tokens=12)
    Scripted.answers = {tuple(item.prompt_token_ids): [VOCAB_SIZE] * 12}
    outputs = run(make_engine(speculative_config=SCRIPTED), [item])
    assert outputs["a"][-1].finish_reason == "error" and "Scripted.propose returned" in outputs["a"][-1].error


def test_a_draft_model_of_another_kind_size_or_vocabulary_is_refused(
    make_engine: MakeEngine, drafters: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    def refused(config: dict[str, Any], method: str = "draft_model") -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError) as error:
            make_engine(speculative_config={"method": method, "model": str(folder)})
        return str(error.value)

    assert "another vocabulary" in refused({**TINY_LLAMA, "vocab_size": 64})
    assert "as many kv heads" in refused({**TINY_LLAMA, "num_key_value_heads": 4})
    assert "lower max_model_len to 128" in refused({**TINY_LLAMA, "max_position_embeddings": 128})
    assert '"method": "draft_model"' in refused(TINY_LLAMA, "eagle")
    assert '"method": "eagle"' in refused(HEAD)
    assert "trained for another model" in refused({**HEAD, "hidden_size": 64}, "eagle")


def test_a_head_by_itself_is_refused(make_engine: MakeEngine, head_dir: Path) -> None:
    with pytest.raises(ConfigError, match="drafts for another model"):
        make_engine(model=str(head_dir))


def sampled_work(temperature: float) -> list[Request]:
    return [
        request(str(i), prompt(12 + i, i), seed=i, temperature=temperature, max_tokens=24, logprobs=1)
        for i in range(5)
    ]


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "eagle", "medusa"])
def test_rejection_leaves_greedy_tokens_alone(
    make_engine: MakeEngine, drafters: dict[str, dict[str, Any]], method: str
) -> None:
    engine = make_engine(speculative_config={**drafters[method], "verifier": "rejection"})
    outputs, counted = counted_run(engine, sampled_work(0.0))
    assert said(outputs) == said(run(make_engine(), sampled_work(0.0)))
    assert counted.num_draft_tokens > 0


@pytest.mark.parametrize("method", ["ngram", "medusa"])
def test_with_rejection_a_seed_gives_the_same_tokens_alone_and_in_a_batch(
    make_engine: MakeEngine, drafters: dict[str, dict[str, Any]], method: str
) -> None:
    engine = make_engine(speculative_config={**drafters[method], "verifier": "rejection"})
    together = said(run(engine, sampled_work(1.0)))
    alone = [said(run(engine, [item])) for item in sampled_work(1.0)]
    assert together == {name: answer for answers in alone for name, answer in answers.items()}


def test_rejection_accepts_every_draft_of_a_model_with_the_targets_weights(
    make_engine: MakeEngine, drafters: dict[str, dict[str, Any]]
) -> None:
    engine = make_engine(speculative_config={**drafters["draft_model"], "verifier": "rejection"})
    _, counted = counted_run(engine, sampled_work(1.0))
    assert counted.num_accepted_tokens == counted.num_draft_tokens > 0


def test_a_draft_model_with_the_same_number_of_other_tokens_is_refused(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    for name, words in (("target", "ab"), ("draft", "ba")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(TINY_LLAMA))
        vocabulary = {word: index for index, word in enumerate(words)}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    with pytest.raises(ConfigError, match="same tokenizer"):
        make_engine(
            model=str(tmp_path / "target"),
            speculative_config={"method": "draft_model", "model": str(tmp_path / "draft")},
        )
