"""The sampler against the rules in `oracle`, one line of design/pitfalls E after the other."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.core.sched_output import RequestInit
from engine.sample.processors import SampleBatch
from engine.sample.rng import row_keys
from engine.sample.sampler import Sampler
from kernels.reference.sampling import gumbel_noise
from tests.sample import oracle
from tests.sample.harness import Row, assert_distributed_as, batch_of, params, sample
from tests.seeds import seeds

VOCAB = 16
DRAWS = 100_000
LOGITS = torch.tensor([3.0, 2.5, 2.5, 2.0, 1.5, 1.0, 1.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.0, -2.0, -4.0, -9.0])


def draw(settings: dict) -> np.ndarray:
    """Return the count of samples of each token in DRAWS tries: one request, asked at DRAWS positions.

    The edits of the logits are the oracle's here: what is tested is the choice.
    """
    filters = {
        name: settings[name] for name in ("temperature", "top_k", "top_p", "min_p") if name in settings
    }
    edited = oracle.edited_logits(LOGITS.tolist(), params(**settings), [0], [])
    sampler = Sampler(VOCAB, 1)
    sampler.add_request(0, Row(params(**filters), seed=1).init)
    batch = batch_of([Row(params())] * DRAWS, slots=[0] * DRAWS)
    batch.lengths = np.arange(DRAWS)
    said = sampler(torch.tensor([edited]).repeat(DRAWS, 1), batch).token_ids
    return np.bincount(said, minlength=VOCAB)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 5.0},
        {"top_k": 3},
        {"top_k": -1},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"temperature": 2.0, "top_k": 6, "top_p": 0.7},
        {"temperature": 0.7, "min_p": 0.05, "top_k": 8, "top_p": 0.9},
        {"temperature": 3.0, "min_p": 0.3, "top_p": 0.5},
        {"logit_bias": {15: 10.0, 0: -100.0}, "top_k": 4},
        {"allowed_token_ids": [3, 4, 15], "temperature": 1.5},
    ],
    ids=str,
)
def test_100000_draws_follow_the_distribution(settings: dict) -> None:
    probs = oracle.distribution(LOGITS.tolist(), params(**settings), [0])
    assert_distributed_as(draw(settings), probs)


def random_row(rng: random.Random) -> Row:
    """Any mixture of everything, with a history."""
    settings: dict = {"temperature": rng.choice([0.0, 0.0, 1e-6, 0.4, 1.0, 1.7])}
    optional = {
        "top_k": lambda: rng.choice([-1, 0, 1, 3, VOCAB, 1000]),
        "top_p": lambda: rng.choice([0.05, 0.5, 0.9]),
        "min_p": lambda: rng.choice([0.01, 0.3, 1.0]),
        "repetition_penalty": lambda: rng.choice([0.5, 1.3, 2.0]),
        "presence_penalty": lambda: rng.choice([-1.5, 0.7]),
        "frequency_penalty": lambda: rng.choice([-0.4, 1.1]),
        "logit_bias": lambda: {rng.randrange(VOCAB): rng.uniform(-5, 5) for _ in range(3)},
        "allowed_token_ids": lambda: [2, *rng.sample(range(VOCAB), 9)],
        "min_tokens": lambda: rng.choice([1, 4]),
        "stop_token_ids": lambda: [rng.choice([0, 3, 4])],
    }
    for name, make in optional.items():
        if rng.random() < 0.3:
            settings[name] = make()
    if rng.random() < 0.3:
        settings["bad_words_token_ids"] = [[5], [rng.randrange(VOCAB), 6], [7, 8, 9]]
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]
    output = [rng.randrange(VOCAB) for _ in range(rng.randint(0, 6))]
    if rng.random() < 0.3:
        output += [7, 8]
    return Row(params(**settings), rng.randrange(-(2**63), 2**63), prompt, output, eos=[1])


def mixed_batch(seed: int, size: int = 64) -> tuple[Tensor, list[Row]]:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, VOCAB, generator=generator) * 3, [random_row(rng) for _ in range(size)]


@pytest.mark.parametrize("seed", seeds(12))
def test_every_row_of_a_mixed_batch_is_what_the_rules_and_the_noise_say(seed: int) -> None:
    logits, rows = mixed_batch(seed)
    output = sample(logits, rows)
    assert not output.errors
    for index, row in enumerate(rows):
        probs = oracle.distribution(logits[index].tolist(), row.params, row.prompt, row.output, row.eos)
        position = len(row.prompt) + len(row.output)
        keys = torch.from_numpy(row_keys(np.array([row.seed]), np.array([position])))
        noise = gumbel_noise(keys, VOCAB)[0].numpy()
        with np.errstate(divide="ignore"):
            scores = np.log(probs) + noise
        said = output.token_ids[index]
        assert scores[said] > scores.max() - 1e-4, (
            f"row {index}: {row}: said {said}, expected {scores.argmax()}"
        )


def test_a_row_gets_the_same_token_alone_in_another_slot_and_in_any_order() -> None:
    logits, rows = mixed_batch(99)
    together = sample(logits, rows).token_ids
    for index, row in enumerate(rows):
        assert sample(logits[index : index + 1], [row]).token_ids[0] == together[index]
    order = random.Random(5).sample(range(len(rows)), len(rows))
    slots = random.Random(6).sample(range(200), len(rows))
    shuffled = sample(logits[order], [rows[index] for index in order], slots).token_ids
    assert shuffled.tolist() == together[order].tolist()


def test_greedy_takes_the_lowest_id_of_equals_and_ignores_every_filter() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [4, 9, 11]] = 2.0
    for settings in ({}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}, {"temperature": 1e-6}):
        assert sample(logits, [Row(params(**{"temperature": 0.0, **settings}))]).token_ids.tolist() == [4]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30])
@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1e-4, 1e30])
def test_no_temperature_overflows(temperature: float, scale: float) -> None:
    logits = torch.arange(VOCAB, dtype=torch.float32).mul(scale).flip(0).unsqueeze(0)
    output = sample(logits, [Row(params(temperature=temperature, top_p=0.9))])
    assert not output.errors
    if temperature <= 1e-4 and scale >= 1.0:
        assert output.token_ids.tolist() == [0]


def test_top_p_keeps_the_token_that_crosses_p() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().unsqueeze(0)
    for top_p, kept in ((0.4, {0}), (0.51, {0, 1}), (0.79, {0, 1}), (0.81, {0, 1, 2}), (0.96, {0, 1, 2, 3})):
        rows = [Row(params(top_p=top_p), seed=seed) for seed in range(400)]
        said = sample(logits.repeat(400, 1), rows).token_ids
        assert set(said.tolist()) == kept


def test_tokens_with_equal_logits_share_their_fate_at_the_filters() -> None:
    rows = [Row(params(top_k=2), seed=seed) for seed in range(400)]
    said = sample(LOGITS.repeat(400, 1), rows).token_ids
    assert set(said.tolist()) == {0, 1, 2}  # 1 and 2 tie for the second place


def test_repetition_sees_prompt_and_output_presence_and_frequency_only_output() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, :3] = torch.tensor([2.0, 1.9, 1.8])

    def said(prompt: list[int], output: list[int], **settings: float) -> int:
        return int(sample(logits, [Row(params(temperature=0.0, **settings), 0, prompt, output)]).token_ids[0])

    assert said([0], [1], repetition_penalty=1.5) == 2
    assert said([0], [1], presence_penalty=1.0) == 0
    assert said([9], [0, 1], presence_penalty=1.0) == 2
    assert said([0, 0], [9], frequency_penalty=1.0) == 0
    assert said([9], [0, 1, 2, 0, 1], frequency_penalty=0.5) == 2


def test_penalties_follow_the_tokens_as_they_come_and_forget_with_the_slot() -> None:
    settings = params(temperature=0.0, frequency_penalty=1.0, repetition_penalty=1.2, presence_penalty=0.3)
    prompt = [3, 3, 5]
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(VOCAB, 2)
    for _ in range(2):  # the second time in a slot that was used before
        output: list[int] = []
        sampler.add_request(1, Row(settings, prompt=prompt).init)
        for _ in range(12):
            token = int(
                sampler(logits.clone(), batch_of([Row(settings, 0, prompt, output)], [1])).token_ids[0]
            )
            assert token == oracle.distribution(logits[0].tolist(), settings, prompt, output).argmax()
            output.append(token)
        sampler.remove_request(1)
    assert len(set(output)) > 3


def test_bad_words_forbid_the_last_token_after_the_others_and_only_then() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = 5.0
    word = params(temperature=0.0, bad_words_token_ids=[[7, 8, 9]])

    def said(prompt: list[int], output: list[int]) -> int:
        return int(sample(logits, [Row(word, 0, prompt, output)]).token_ids[0])

    assert said([1], [7, 8]) == 0
    assert said([1], [2, 7, 8]) == 0
    assert said([1], [8]) == 9
    assert said([1], [7, 8, 2]) == 9
    assert said([7], [8]) == 9, "a prompt cannot start a bad word"
    assert said([7, 8], []) == 9


def test_no_bias_lifts_a_ban() -> None:
    logits = torch.zeros(2, VOCAB)
    rows = [
        Row(params(temperature=0.0, logit_bias={3: 100.0}, allowed_token_ids=[5, 6])),
        Row(params(temperature=0.0, logit_bias={1: 100.0}, min_tokens=2), eos=[1]),
    ]
    assert sample(logits, rows).token_ids.tolist() == [5, 0]


def test_eos_and_stop_ids_wait_for_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [1, 4]] = torch.tensor([9.0, 8.0])
    settings = params(temperature=0.0, min_tokens=2, stop_token_ids=[4])
    said = [
        int(sample(logits, [Row(settings, 0, [2], [5] * count, eos=[1])]).token_ids[0]) for count in range(4)
    ]
    assert said == [0, 0, 1, 1]
    sampler = Sampler(VOCAB, 1)
    sampler.add_request(0, Row(settings, 0, [2], eos=[1]).init)
    grown = [batch_of([Row(settings, 0, [2], [5] * count)]) for count in range(4)]
    assert [int(sampler(logits.clone(), batch).token_ids[0]) for batch in grown] == [0, 0, 1, 1]


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    settings = params(
        temperature=0.0,
        logit_bias={VOCAB: 5.0},
        allowed_token_ids=[2, VOCAB + 7],
        stop_token_ids=[VOCAB],
        min_tokens=1,
        bad_words_token_ids=[[VOCAB + 1]],
    )
    assert sample(torch.zeros(1, VOCAB), [Row(settings, eos=[VOCAB + 2])]).token_ids.tolist() == [2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("poison", "cause"), [(math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "every token is forbidden")]
)
def test_a_row_without_a_choice_fails_alone(temperature: float, poison: float, cause: str) -> None:
    logits, rows = mixed_batch(7, size=9)
    expected = sample(logits, rows).token_ids
    rows[4] = Row(params(temperature=temperature, top_k=3, top_p=0.5, logprobs=2))
    logits[4] = poison if poison < 0 else logits[4]
    logits[4, 6] = poison
    output = sample(logits, rows)
    assert list(output.errors) == [4] and cause in output.errors[4]
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert output.token_ids[others].tolist() == expected[others].tolist()


def test_single_minus_infinities_are_just_never_sampled() -> None:
    logits = torch.full((300, VOCAB), -math.inf)
    logits[:, [3, 8]] = 1.0
    rows = [Row(params(top_p=0.99, top_k=5), seed=seed) for seed in range(300)]
    output = sample(logits, rows)
    assert not output.errors and set(output.token_ids.tolist()) == {3, 8}


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits, _ = mixed_batch(3, size=4)
    rows = [
        Row(params(temperature=0.0, logprobs=0)),
        Row(params(temperature=0.0)),
        Row(params(temperature=0.7, top_k=2, logprobs=3, logit_bias={5: 50.0})),
        Row(params(temperature=0.0, logprobs=-1, allowed_token_ids=[9])),
    ]
    output = sample(logits, rows)
    assert sorted(output.logprobs) == [0, 2, 3]
    for index, count in ((0, 0), (2, 3), (3, VOCAB)):
        entry, said = output.logprobs[index], output.token_ids[index]
        expected = logits[index].double().log_softmax(-1)
        order = expected.argsort(descending=True).tolist()
        assert entry.token_ids == [said, *order[:count]]
        assert entry.rank == order.index(said) + 1
        assert entry.logprobs == pytest.approx(expected[entry.token_ids].tolist(), abs=1e-5)


def test_a_users_processor_edits_only_rows_that_asked_and_runs_last() -> None:
    class Insist:
        """Forces the token that a request names by its stop_token_ids."""

        def __init__(self, vocab_size: int, num_slots: int, device: torch.device) -> None:
            self.tokens: dict[int, int] = {}

        def add_request(self, slot: int, init: RequestInit) -> bool:
            wanted = init.sampling_params.stop_token_ids
            if wanted:
                self.tokens[slot] = wanted[0]
            return bool(wanted)

        def remove_request(self, slot: int) -> None:
            del self.tokens[slot]

        def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
            for row in rows.tolist():
                logits[row] = -torch.inf
                logits[row, self.tokens[batch.slots[row]]] = 0.0

    logits, _ = mixed_batch(4, size=3)
    rows = [
        Row(params(temperature=0.0)),
        Row(params(temperature=0.0, stop_token_ids=[11], allowed_token_ids=[2])),
        Row(params(temperature=1.0, stop_token_ids=[12])),
    ]
    plain = sample(logits, rows).token_ids
    forced = sample(logits, rows, processors=[Insist]).token_ids
    assert forced.tolist() == [plain[0], 11, 12]


def test_an_unchanged_batch_is_not_looked_up_again() -> None:
    logits, rows = mixed_batch(8, size=5)
    batch = batch_of(rows)
    sampler = Sampler(VOCAB, 5)
    for slot, row in enumerate(rows):
        sampler.add_request(slot, row.init)
    sampler(logits.clone(), batch)
    plan = sampler.plan(batch.slots)
    sampler(logits.clone(), batch)
    assert sampler.plan(batch.slots) is plan
    sampler.remove_request(2)
    sampler.add_request(2, Row(params(temperature=0.0)).init)
    assert sampler(logits.clone(), batch).token_ids[2] == logits[2].argmax()
