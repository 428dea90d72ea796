"""Checks of lesson 06. The oracle is a list of the times at which slots become free."""

from __future__ import annotations

import heapq
from itertools import permutations
from random import Random

from lessons.course.checking import Failed, Learner, check, refused, smallest

Workload = tuple[int, list[int]]
"""Slots, and output lengths in order of arrival."""


def finish_steps(slots: int, lens: list[int]) -> list[int]:
    """Return the step after which each request has its last token: list scheduling with a heap of free times."""
    free = [0] * slots
    found = []
    for length in lens:
        found.append(heapq.heappop(free) + length)
        heapq.heappush(free, found[-1])
    return found


def workloads(count: int = 200) -> list[Workload]:
    rng = Random(6)
    drawn = [
        (rng.randint(1, 6), [rng.randint(1, 12) for _ in range(rng.randint(1, 14))]) for _ in range(count)
    ]
    return sorted(drawn, key=lambda workload: (len(workload[1]), sum(workload[1])))


def batcher(learner: Learner, slots: int, lens: list[int]):
    made = learner.new("ContinuousBatcher", slots)
    for number, length in enumerate(lens):
        made.add(f"r{number}", length)
    return made


@check("06.1")
def one_request_takes_its_tokens(learner: Learner) -> None:
    """A request for 3 tokens finishes in the third step, and an idle step returns []."""
    made = batcher(learner, 2, [3])
    told = [made.step() for _ in range(4)]
    if told != [[], [], ["r0"], []]:
        raise Failed(f"the steps returned {told}", example="slots 2, lens [3], four steps")


@check("06.1")
def slots_are_the_limit(learner: Learner) -> None:
    """Never more requests hold a slot than there are slots."""

    def run(workload: Workload) -> None:
        slots, lens = workload
        made = batcher(learner, slots, lens)
        for step in range(sum(lens) + 1):
            made.step()
            if len(found := made.running()) > slots:
                raise Failed(f"after step {step} {len(found)} requests run", example=workload)

    smallest(workloads(60), run)


@check("06.1")
def a_free_slot_is_taken_before_the_next_step(learner: Learner) -> None:
    """A waiting request starts in the step after a slot became free, although others still run."""
    made = batcher(learner, 2, [1, 4, 2])
    told = [made.step() for _ in range(4)]
    if told != [["r0"], [], ["r2"], ["r1"]]:
        raise Failed(
            f"the steps finished {told}, expected r2 in the third", example="slots 2, lens [1, 4, 2]"
        )


@check("06.1")
def requests_start_in_order_of_arrival(learner: Learner) -> None:
    """Requests take slots in the order in which they were added."""
    made = batcher(learner, 1, [2, 1, 1])
    told = [name for _ in range(4) for name in made.step()]
    if told != ["r0", "r1", "r2"]:
        raise Failed(f"they finished as {told}", example="slots 1, lens [2, 1, 1]")


@check("06.1")
def random_workloads_take_as_many_steps_as_list_scheduling(learner: Learner) -> None:
    """On 200 random workloads every request finishes in the step that list scheduling says."""

    def run(workload: Workload) -> None:
        slots, lens = workload
        made = batcher(learner, slots, lens)
        expected = finish_steps(slots, lens)
        found: dict[str, int] = {}
        for step in range(1, max(expected) + 2):
            for name in made.step():
                found[name] = step
        for number, due in enumerate(expected):
            if found.get(f"r{number}") != due:
                raise Failed(
                    f"request {number} finished in step {found.get(f'r{number}')}, expected {due}",
                    example=workload,
                )

    smallest(workloads(), run)


@check("06.1")
def a_late_request_joins_a_running_batch(learner: Learner) -> None:
    """A request that is added while others run takes a free slot in the next step."""
    made = batcher(learner, 2, [5])
    made.step()
    made.add("late", 1)
    if (told := made.step()) != ["late"]:
        raise Failed(
            f"the second step finished {told}", example="slots 2: add a (5 tokens), step, add late (1), step"
        )


@check("06.1")
def no_slots_are_refused(learner: Learner) -> None:
    """Zero slots raise ValueError."""
    refused("ContinuousBatcher(0)", learner.new, "ContinuousBatcher", 0)


@check("06.2")
def groups_last_as_long_as_their_longest(learner: Learner) -> None:
    """Static batching waits for the longest of each group."""
    cases = [(2, [4, 40, 4, 40]), (2, [3, 9, 5, 2]), (4, [1, 2, 3, 4, 5])]
    for slots, lens in cases:
        expected = sum(max(lens[at : at + slots]) for at in range(0, len(lens), slots))
        if (told := learner.call("static_steps", lens, slots)) != expected:
            raise Failed(f"returned {told}, expected {expected}", example=f"static_steps({lens}, {slots})")


@check("06.2")
def a_last_group_may_be_small(learner: Learner) -> None:
    """Requests that do not fill the last group count too; no requests take no steps."""
    for lens, slots, expected in (([2, 3, 7], 2, 10), ([], 3, 0), ([5], 8, 5)):
        if (told := learner.call("static_steps", lens, slots)) != expected:
            raise Failed(f"returned {told}, expected {expected}", example=f"static_steps({lens}, {slots})")


@check("06.2")
def order_of_arrival_is_kept(learner: Learner) -> None:
    """Groups form in order of arrival: sorting first would be another policy."""
    if (told := learner.call("static_steps", [9, 1, 9, 1], 2)) != 18:
        raise Failed(f"returned {told}, expected 18", example="static_steps([9, 1, 9, 1], 2)")


@check("06.2")
def use_counts_tokens_per_slot_step(learner: Learner) -> None:
    """slot_use is tokens over slots times steps, and 0 without steps."""
    for lens, slots, steps, expected in (
        ([4, 4], 2, 4, 1.0),
        ([4, 2], 2, 4, 0.75),
        ([], 2, 0, 0.0),
        ([3], 4, 3, 0.25),
    ):
        told = learner.call("slot_use", lens, slots, steps)
        if not isinstance(told, int | float) or abs(told - expected) > 1e-9:
            raise Failed(
                f"returned {told}, expected {expected}", example=f"slot_use({lens}, {slots}, {steps})"
            )


@check("06.3")
def nothing_takes_no_steps(learner: Learner) -> None:
    """No requests: (0, 0)."""
    if tuple(told := learner.call("bounds", [], 3)) != (0, 0):
        raise Failed(f"returned {told}", example="bounds([], 3)")


@check("06.3")
def equal_requests_meet_the_least(learner: Learner) -> None:
    """For equal lengths that fill the slots the least is what both policies need."""
    least, _ = learner.call("bounds", [5] * 8, 4)
    if least != 10:
        raise Failed(f"least is {least}, expected 10", example="bounds([5] * 8, 4)")


@check("06.3")
def one_long_request_decides(learner: Learner) -> None:
    """The least is never below the longest request, nor below the tokens per slot, rounded up."""
    for lens, slots, expected in (([9, 1], 2, 9), ([1, 1, 1], 2, 2), ([3, 3, 3], 2, 5)):
        least, _ = learner.call("bounds", lens, slots)
        if least != expected:
            raise Failed(f"least is {least}, expected {expected}", example=f"bounds({lens}, {slots})")


@check("06.3")
def every_order_lies_between(learner: Learner) -> None:
    """Whatever the order of arrival, list scheduling needs between least and most steps."""

    def run(workload: Workload) -> None:
        slots, lens = workload
        least, most = learner.call("bounds", lens, slots)
        steps = {max(finish_steps(slots, list(order))) for order in permutations(lens)}
        if not least <= min(steps) or not max(steps) <= most:
            raise Failed(
                f"said {least} to {most}; orders need {min(steps)} to {max(steps)}", example=workload
            )

    smallest([(slots, lens[:6]) for slots, lens in workloads(60)], run)


@check("06.3")
def most_is_grahams_bound(learner: Learner) -> None:
    """The most is floor((total - longest) / slots) + longest: a looser bound says less."""
    for lens, slots, expected in (
        ([4, 40, 4, 40], 2, 64),
        ([1], 4, 1),
        ([2, 2, 2], 3, 3),
        ([6, 5, 4], 1, 15),
    ):
        _, most = learner.call("bounds", lens, slots)
        if most != expected:
            raise Failed(f"most is {most}, expected {expected}", example=f"bounds({lens}, {slots})")
