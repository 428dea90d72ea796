"""The scripted engine against counts by hand and against its own totals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quizzes.experiments.core_engine import Ask, CoreEngine, NoProgress

untimed = settings(deadline=None, max_examples=40)


def test_a_request_takes_a_step_for_its_prompt_and_one_for_each_further_token() -> None:
    engine = CoreEngine().run([Ask("a", prompt=40, output=5)])
    found = engine.outcomes["a"]
    assert (found.admitted, found.first_token, found.finished, engine.num_steps) == (0, 0, 4, 5)
    assert found.computed_tokens == 44  # the last token is never computed
    assert engine.steps[0].rows == {"a": (0, 40)} and engine.steps[1].rows == {"a": (40, 1)}


def test_a_budget_cuts_a_prompt_into_chunks_and_only_the_last_gives_a_token() -> None:
    engine = CoreEngine(max_num_batched_tokens=16).run([Ask("a", prompt=40, output=2)])
    assert [step.num_tokens for step in engine.steps] == [16, 16, 8, 1]
    assert engine.outcomes["a"].token_steps == [2, 3]


def test_a_request_arrives_before_the_step_that_it_names() -> None:
    engine = CoreEngine().run([Ask("late", prompt=8, output=1, arrival=2), Ask("a", prompt=8, output=5)])
    assert engine.outcomes["late"].arrival == engine.outcomes["late"].admitted == 2
    assert [list(step.rows) for step in engine.steps[:3]] == [["a"], ["a"], ["a", "late"]]


def test_an_idle_engine_skips_to_the_next_arrival() -> None:
    assert CoreEngine().run([Ask("a", prompt=8, output=1, arrival=1000)]).num_steps == 1


def test_prompts_given_as_lengths_share_nothing_and_equal_prompts_share_their_blocks() -> None:
    engine = CoreEngine(block_size=16).run([Ask("a", prompt=64), Ask("b", prompt=64, arrival=1)])
    assert engine.outcomes["b"].cached_tokens == 0
    prompt = list(range(64))
    engine = CoreEngine(block_size=16).run([Ask("a", prompt=prompt), Ask("b", prompt=prompt, arrival=1)])
    assert engine.outcomes["b"].cached_tokens == 48  # the last token has to be computed
    assert engine.outcomes["b"].computed_tokens == 16


def test_blocks_are_those_that_requests_can_use() -> None:
    engine = CoreEngine(num_blocks=4, block_size=16)
    engine.add(Ask("a", prompt=33, output=4))
    engine.step()
    assert (engine.used_blocks, engine.free_blocks) == (3, 1)
    engine.run()
    assert (engine.used_blocks, engine.free_blocks) == (0, 4)


def test_a_preemption_is_seen_where_it_happens_and_its_work_is_counted_again() -> None:
    engine = CoreEngine(num_blocks=4, block_size=16, enable_prefix_caching=False)
    engine.run([Ask("a", prompt=30, output=10), Ask("b", prompt=30, output=10)])
    assert engine.num_preemptions == 1 and engine.outcomes["a"].preemptions == []
    (at,) = engine.outcomes["b"].preemptions
    assert engine.steps[at].preempted == ["b"]
    # b lost its prompt and the tokens before the step, and computes all of them again
    assert engine.outcomes["b"].computed_tokens == 39 + 30 + at - 1
    assert len(engine.outcomes["b"].token_steps) == 10


def test_an_end_of_sequence_ends_a_request_before_its_limit() -> None:
    engine = CoreEngine().run([Ask("a", prompt=8, output=3, max_tokens=100)])
    assert len(engine.outcomes["a"].token_steps) == 3 and engine.outcomes["a"].finished == 2


def test_a_run_without_progress_raises() -> None:
    with pytest.raises(NoProgress, match="3 steps"):
        CoreEngine().run([Ask("a", prompt=8, output=50)], max_steps=3)


@untimed
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 8)), min_size=1, max_size=6),
    st.integers(6, 30),
    st.sampled_from([16, 64, 8192]),
)
def test_steps_and_requests_count_the_same_tokens(
    shapes: list[tuple[int, int, int]], num_blocks: int, budget: int
) -> None:
    asks = [Ask(f"r{n}", prompt=p, output=o, arrival=at) for n, (p, o, at) in enumerate(shapes)]
    engine = CoreEngine(num_blocks=num_blocks, max_num_batched_tokens=budget).run(asks)
    outcomes = engine.outcomes
    assert sum(step.num_tokens for step in engine.steps) == sum(o.computed_tokens for o in outcomes.values())
    assert engine.num_preemptions == sum(len(outcome.preemptions) for outcome in outcomes.values())
    for ask in asks:
        assert len(outcomes[ask.request_id].token_steps) == ask.output
        assert outcomes[ask.request_id].finished == outcomes[ask.request_id].token_steps[-1]
    assert engine.used_blocks == 0
