"""Repairs of batching_loop that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "a_pass_for_nobody",
        "check_nothing_to_do_is_no_work",
        "looks whether there is work only after a step",
        (
            "    while waiting or batch:\n",
            """\
    first = True
    while first or waiting or batch:
        first = False
""",
        ),
    ),
    Mutant(
        "everybody_joins",
        "check_the_slots_are_the_limit",
        "all who wait join, whatever the slots",
        (
            "        while waiting and len(batch) < slots:\n",
            "        while waiting:\n",
        ),
    ),
    Mutant(
        "last_come_first_served",
        "check_requests_go_in_order",
        "takes the newest of the waiting",
        (
            "            batch.append(waiting.pop(0))\n",
            "            batch.append(waiting.pop())\n",
        ),
    ),
    Mutant(
        "one_joins_a_step",
        "check_random_work_takes_as_long_as_list_scheduling",
        "only one request joins between two steps",
        (
            "        while waiting and len(batch) < slots:\n",
            "        if waiting and len(batch) < slots:\n",
        ),
    ),
    Mutant(
        "released_with_the_batch",
        "check_memory_is_released_once",
        "gives back the memory of the whole batch when one finishes",
        (
            "        memory.release(completed)\n",
            "        memory.release(batch if completed else [])\n",
        ),
    ),
    Mutant(
        "static",
        "check_a_free_slot_is_taken_at_once",
        "admits only into an empty batch",
        (
            "        while waiting and len(batch) < slots:\n",
            """\
        while waiting and len(batch) < slots and not (batch and getattr(batch[0], "generated", 0)):
""",
        ),
    ),
    Mutant(
        "the_finished_stay",
        "check_nothing_is_computed_for_the_finished",
        "the finished leave only when all have finished",
        (
            "        batch = [request for request in batch if outputs[request.name] is not None]\n",
            """\
        if len(completed) == len(batch):
            batch = []
""",
        ),
    ),
)
