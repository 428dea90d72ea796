"""Requirements on a scheduler.

Sequence(request_id, num_tokens, priority=0); SimpleScheduler(max_batch_size, num_blocks,
block_size); add_sequence, schedule, complete_sequence, abort."""

import random
from typing import Any

from quizzes.autopsies.programs import Program, refused


def _scheduler(program: Program, max_batch_size: int = 4, num_blocks: int = 1000, **tokens: int) -> Any:
    """A scheduler; tokens: request id -> tokens of a waiting sequence."""
    scheduler = program.SimpleScheduler(max_batch_size, num_blocks, 16)
    for name, num_tokens in tokens.items():
        scheduler.add_sequence(program.Sequence(name, num_tokens))
    return scheduler


def _ids(sequences: list[Any]) -> list[str]:
    return [sequence.request_id for sequence in sequences]


def check_never_more_than_the_limit(program: Program) -> None:
    """schedule() returns at most max_batch_size sequences, however many wait."""
    scheduler = _scheduler(program, 3, **{f"r{i}": 8 for i in range(10)})
    sizes = []
    for _ in range(5):
        batch = scheduler.schedule()
        sizes.append(len(batch))
        if batch:
            scheduler.complete_sequence(batch[0].request_id)
    assert sizes == [3] * 5, f"batch sizes {sizes} with max_batch_size=3"


def check_lower_numbers_go_first(program: Program) -> None:
    """The waiting request with the lowest priority number goes first, as in vLLM; equals in order of arrival."""
    scheduler = _scheduler(program, 1)
    for name, priority in [("late", 5), ("first", 1), ("second", 1), ("third", 3)]:
        scheduler.add_sequence(program.Sequence(name, 8, priority))
    order = []
    for _ in range(4):
        (sequence,) = scheduler.schedule()
        order.append(sequence.request_id)
        scheduler.complete_sequence(sequence.request_id)
    assert order == ["first", "second", "third", "late"], f"order {order}"


def check_an_id_can_be_there_once(program: Program) -> None:
    """add_sequence refuses an id that waits or runs with ValueError; after its end it may be used again."""
    scheduler = _scheduler(program, a=8, b=8)
    scheduler.schedule()
    scheduler.add_sequence(program.Sequence("c", 8))
    for name in ("a", "c"):
        with refused(ValueError, f"a second {name!r} was accepted"):
            scheduler.add_sequence(program.Sequence(name, 8))
    scheduler.complete_sequence("a")
    scheduler.schedule()
    scheduler.add_sequence(program.Sequence("a", 8))


def check_admission_looks_at_memory(program: Program) -> None:
    """A sequence is admitted only if ceil(num_tokens / block_size) blocks are free; its blocks come back at its end."""
    scheduler = _scheduler(program, 8, 10, a=60, b=60, c=60)
    first = _ids(scheduler.schedule())
    assert first == ["a", "b"], f"with 10 blocks and sequences of 4 blocks, {first} run"
    scheduler.complete_sequence("a")
    later = sorted(_ids(scheduler.schedule()))
    assert later == ["b", "c"], "the blocks of a finished sequence did not come back"


def check_nobody_overtakes_who_does_not_fit(program: Program) -> None:
    """If the first of the queue does not fit, those behind it wait too: small ones must not starve a large one."""
    scheduler = _scheduler(program, 8, 10, runs=100, large=160, small=16)
    assert _ids(scheduler.schedule()) == ["runs"], "another request overtook the large one"


def check_what_can_never_fit_is_refused(program: Program) -> None:
    """add_sequence refuses a sequence larger than the whole pool with ValueError."""
    with refused(
        ValueError, "161 tokens were accepted by a pool for 160: they would block the queue for ever"
    ):
        _scheduler(program, num_blocks=10).add_sequence(program.Sequence("huge", 161))


def check_abort_frees_at_once(program: Program) -> None:
    """abort(request_id) takes a waiting or running sequence out, frees its blocks, and says whether it was there."""
    scheduler = _scheduler(program, 8, 10, a=60, b=60, c=60)
    scheduler.schedule()
    assert scheduler.abort("a") is True, "abort of a running sequence did not return True"
    assert sorted(_ids(scheduler.schedule())) == ["b", "c"], "the blocks of the aborted sequence are not free"
    scheduler.add_sequence(program.Sequence("d", 60))
    aborted = scheduler.abort("d")
    assert aborted is True and "d" not in _ids(scheduler.schedule()), "a waiting one cannot be aborted"
    assert scheduler.abort("unknown") is False, "abort of an unknown id did not return False"


def check_a_finished_sequence_holds_no_slot(program: Program) -> None:
    """After complete_sequence the next schedule() gives its slot to another."""
    scheduler = _scheduler(program, 1, a=8, b=8)
    scheduler.schedule()
    scheduler.complete_sequence("a")
    assert _ids(scheduler.schedule()) == ["b"]


def check_random_work_ends_and_keeps_every_limit(program: Program) -> None:
    """Limits hold with random arrivals and ends at every step and every request is served in the end."""
    rng = random.Random(3)
    scheduler = _scheduler(program, 4, num_blocks=20)
    tokens = {f"r{i}": rng.randint(1, 300) for i in range(60)}
    served = set()
    for name, size in tokens.items():
        scheduler.add_sequence(program.Sequence(name, size, rng.randint(0, 3)))
    for step in range(500):
        batch = _ids(scheduler.schedule())
        blocks = sum(-(-tokens[name] // 16) for name in batch)
        assert len(batch) <= 4 and blocks <= 20, f"step {step}: {len(batch)} sequences, {blocks} blocks of 20"
        if not batch:
            break
        served.update(batch)
        scheduler.complete_sequence(rng.choice(batch))
    assert served == set(tokens), f"{len(tokens) - len(served)} sequences were never served"
