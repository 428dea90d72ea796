"""Requirements on the loop: continuous_batching(model, waiting, memory, slots) until every request has finished.

model.forward(batch) -> {name: token or None when it was the last}. memory.release(requests) gives blocks back.
"""

from prep_common.sandbox import expose
from quizzes.autopsies.batching_loop.probes import Memory, Model, Request
from quizzes.autopsies.programs import Program

TOO_MANY = 2000


class _Bounded(Model):
    """Ends a loop that never ends. The first token of each request is 0."""

    def forward(self, batch: list[Request]) -> dict[str, int | None]:
        assert len(self.rows) < TOO_MANY, f"still running after {TOO_MANY} forward passes"
        assert batch, "a forward pass without a request"
        answers = super().forward(batch)
        return {name: token if token is None else token - 1 for name, token in answers.items()}


def _run(program: Program, lens: list[int], slots: int) -> tuple[_Bounded, Memory]:
    model, memory = _Bounded(), Memory()
    requests = [Request(f"r{i}", n) for i, n in enumerate(lens)]
    waiting = [expose(request, attributes=("name", "generated")) for request in requests]
    program.continuous_batching(expose(model, ["forward"]), waiting, expose(memory, ["release"]), slots)
    return model, memory


def check_it_ends(program: Program) -> None:
    """The loop returns when all requests have finished, after as many passes as the longest needs."""
    model, _ = _run(program, [3, 5, 2], 4)
    assert len(model.rows) == 5, f"{len(model.rows)} forward passes, wanted 5"


def check_nothing_is_computed_for_the_finished(program: Program) -> None:
    """A request that has finished is in no later batch."""
    model, _ = _run(program, [2, 6, 3], 3)
    assert model.rows_of_finished == 0, f"{model.rows_of_finished} rows computed for finished requests"


def check_the_slots_are_the_limit(program: Program) -> None:
    """No batch is larger than `slots`."""
    model, _ = _run(program, [4] * 9, 2)
    assert max(model.rows) <= 2, f"batches of up to {max(model.rows)} with 2 slots"


def check_a_free_slot_is_taken_at_once(program: Program) -> None:
    """The step after a request finishes, the next one runs in its slot."""
    model, _ = _run(program, [1, 4, 3, 2], 2)
    assert model.rows == [2, 2, 2, 2, 1, 1], f"rows by step {model.rows}, wanted 2 2 2 2 1 1"


def check_memory_is_released_once(program: Program) -> None:
    """Every request's memory is given back exactly once."""
    _, memory = _run(program, [3, 1, 4, 1, 5], 2)
    assert sorted(memory.releases) == [f"r{i}" for i in range(5)], f"released {memory.releases}"


def check_requests_go_in_order(program: Program) -> None:
    """Requests start in order of arrival."""
    model, _ = _run(program, [2] * 6, 2)
    started = list(model.started)
    assert started == [f"r{i}" for i in range(6)], f"started in the order {started}"


def check_nothing_to_do_is_no_work(program: Program) -> None:
    """Without requests there is no forward pass."""
    model, _ = _run(program, [], 4)
    assert model.rows == []


def check_random_work_takes_as_long_as_list_scheduling(program: Program) -> None:
    """For random lengths the number of passes is that of handing each free slot to the next request."""
    rng = program.rng
    for slots, requests in [*((rng.randint(1, 5), rng.randint(1, 9)) for _ in range(12)), (2, 30), (9, 40)]:
        lens = [rng.randint(1, 12) for _ in range(requests)]
        ends = [0] * slots
        for length in lens:
            ends.sort()
            ends[0] += length
        model, _ = _run(program, lens, slots)
        passes = len(model.rows)
        assert passes == max(ends), f"slots {slots}, lengths {lens}: {passes} passes, not {max(ends)}"
