"""prep cache lint: hits of logged prompts equal the engine's; places that cost hits, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ConfigError
from engine.frontend.prefix_audit import PrefixAudit, audit_prompts, differences, kind_of
from engine.frontend.prompt_log import LoggedPrompt, read_prompts
from engine.frontend.tokenizer import Tokenizer
from engine.zoo.registry import resolve
from quizzes.experiments.core_engine import Ask, CoreEngine

prompts_of_few_tokens = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=8)


def audit(prompts: Sequence[Sequence[int]], block_size: int = 4) -> PrefixAudit:
    logged = [LoggedPrompt(list(prompt)) for prompt in prompts]
    return audit_prompts(logged, lambda tokens: " ".join(map(str, tokens)), block_size)


@settings(max_examples=60, deadline=None)
@given(prompts_of_few_tokens)
def test_hits_equal_those_of_the_engine(prompts: list[list[int]]) -> None:
    engine = CoreEngine(block_size=4, num_blocks=100, max_num_batched_tokens=64)
    for number, prompt in enumerate(prompts):
        engine.run([Ask(f"r{number}", prompt, 1)])
    assert audit(prompts).hit_tokens == sum(engine.cached_tokens)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_differences_rebuild_the_new_prompt(old: list[int], new: list[int]) -> None:
    found = list(differences(old, new, gram=2))
    rebuilt, at = [], 0
    for each in found:
        rebuilt += old[at : each.old_start] + new[each.start : each.stop]
        at = each.old_stop
        assert old[at : at + each.stable] == new[each.stop : each.stop + each.stable]
    ends = not found and len(new) <= len(old)
    assert (rebuilt + old[at:])[: len(new)] == new if ends or found else new == []


def test_what_moving_a_place_behind_the_stable_text_gains_is_what_the_audit_promises() -> None:
    rng = Random(3)
    head, body = [rng.randrange(1000) for _ in range(8)], [rng.randrange(1000) for _ in range(64)]
    parts = [([2000 + number], [rng.randrange(5000, 9000) for _ in range(6)]) for number in range(10)]
    before = audit([head + stamp + body + question for stamp, question in parts])
    after = audit([head + body + stamp + question for stamp, question in parts])
    [place] = before.places
    assert (place.num_requests, place.num_tokens) == (9, 9 * 64)
    assert before.hit_tokens == 9 * 8
    assert before.possible_tokens == after.hit_tokens == 9 * 72
    assert after.places == []


def test_requests_of_other_adapters_and_salts_share_nothing() -> None:
    tokens = list(range(40))
    logged = [LoggedPrompt(tokens, model, salt) for model in ("a", "b") for salt in (None, "x")]
    found = audit_prompts(logged, str, 4)
    assert found.hit_tokens == found.possible_tokens == 0
    assert audit_prompts([*logged, logged[0]], str, 4).hit_tokens == 36


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        ("10:17.", "10:18.", "date or time"),
        ("2026-11-24", "2026-11-25", "date or time"),
        ("1795438075", "1795438099", "date or time"),
        ("f2a752e6b438", "0c5ca6a3a450", "id"),
        ("9a4fb2c5-816d", "1b4fb2c5-816e", "id"),
        ("order 17", "order 18", "number"),
        ("two  blanks", "two blanks", "white space"),
        ('"limit", "text"', '"text", "limit"', "order"),
        ("Alice", "Bob", "text"),
    ],
)
def test_a_change_is_named_by_its_kind(was: str, now: str, kind: str) -> None:
    assert kind_of(was, now) == kind


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve("shop"))


def test_bodies_batch_lines_and_server_logs_are_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    chat = {"messages": [{"role": "user", "content": "Hello"}], "cache_salt": "s"}
    lines = [
        chat,
        {"body": chat},
        {"prompt": "Hello"},
        {"prompt": [1, 2]},
        {"prompt": 2, "prompt_text": "Hello"},
    ]
    file = tmp_path / "log.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)))
    first, second, text, tokens, logged = read_prompts(file, tokenizer)
    assert first == second and first.cache_salt == "s"
    assert text.token_ids == logged.token_ids == tokenizer.encode("Hello")
    assert tokens.token_ids == [1, 2]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"hello", "line 1: the line is not JSON"),
        (b"[1]", "line 1: got '[1]'"),
        (b"{}", "no prompt among the keys []"),
        (b'{"prompt": ""}', "the prompt is empty"),
        (b'{"prompt": [-1]}', "got [-1]"),
        (b'{"prompt": 5}', "the prompt is a string or a list of token ids, got 5"),
        (b'{"prompt": "a", "cache_salt": 7}', "cache_salt must be a string, got 7"),
        (b'{"messages": [7]}', "line 1: "),
        (b'{"prompt": "\\ud800"}', "not Unicode"),
        (b"\xff\xfe", "line 1: "),
        (b"[" * 100_000, "line 1: "),
        (b'{"prompt": 5, "output": 3, "finish_reason": "stop"}', "--log-prompts"),
        (b"", "holds no prompts"),
    ],
)
def test_a_line_without_a_prompt_is_refused_by_number(
    line: bytes, says: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(line)
    with pytest.raises(ConfigError) as error:
        read_prompts(file, tokenizer)
    assert says in str(error.value) and len(str(error.value)) < 400
