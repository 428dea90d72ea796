"""Requirements on a scheduler.

Sequence(request_id, num_tokens, priority=0); SimpleScheduler(max_batch_size, num_blocks,
block_size); add_sequence, schedule, complete_sequence, abort."""

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


def check_random_work_runs_in_order_within_every_limit(program: Program) -> None:
    """The first of the queue runs as soon as a slot and its blocks are free, at any size."""
    rng = program.rng
    slots, free, size = rng.randint(5, 9), rng.randint(25, 40), rng.choice([3, 8, 20, 32])
    scheduler = program.SimpleScheduler(slots, free, size)
    blocks: dict[str, int] = {}
    queue: list[tuple[int, int, str]] = []
    for i in range(60):
        name, num_tokens = f"r{i}", rng.randint(1, rng.choice([3, 9, free]) * size)
        blocks[name] = -(-num_tokens // size)
        queue.append((rng.randint(0, 5), i, name))
        scheduler.add_sequence(program.Sequence(name, num_tokens, queue[-1][0]))
    queue.sort()
    running: list[str] = []
    while queue or running:
        while queue and len(running) < slots and blocks[queue[0][2]] <= free:
            running.append(queue.pop(0)[2])
            free -= blocks[running[-1]]
        batch = _ids(scheduler.schedule())
        assert sorted(batch) == sorted(running), (
            f"{batch} run, wanted {running}: {slots} slots, {free} blocks left"
        )
        ended = running.pop(rng.randrange(len(running)))
        free += blocks[ended]
        scheduler.complete_sequence(ended)
