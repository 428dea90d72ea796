"""Repairs of scheduler that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "abort_keeps_blocks",
        "check_abort_frees_at_once",
        "an aborted sequence leaves its blocks taken",
        (
            "            self.complete_sequence(request_id)\n",
            """\
            del self.running[request_id]
            self.known.discard(request_id)
""",
        ),
    ),
    Mutant(
        "completion_keeps_the_slot",
        "check_a_finished_sequence_holds_no_slot",
        "a finished sequence stays among the running",
        (
            "        sequence = self.running.pop(request_id, None)\n",
            "        sequence = self.running.get(request_id)\n",
        ),
    ),
    Mutant(
        "higher_numbers_first",
        "check_lower_numbers_go_first",
        "a high number counts as important",
        (
            """\
        heapq.heappush(self.waiting, (sequence.priority, next(self.arrivals), sequence))
""",
            """\
        heapq.heappush(self.waiting, (-sequence.priority, next(self.arrivals), sequence))
""",
        ),
    ),
    Mutant(
        "ids_are_not_checked",
        "check_an_id_can_be_there_once",
        "a second sequence with the same id replaces the first",
        (
            """\
        if sequence.request_id in self.known:
            raise ValueError(f"{sequence.request_id!r} is not finished yet")
""",
            "",
        ),
    ),
    Mutant(
        "limit_before_admission",
        "check_never_more_than_the_limit",
        "the limit is looked at once, before any request is admitted",
        (
            "        while self.waiting and len(self.running) < self.max_batch_size:\n",
            "        while self.waiting and len(self.running) <= self.max_batch_size:\n",
        ),
    ),
    Mutant(
        "skips_who_does_not_fit",
        "check_nobody_overtakes_who_does_not_fit",
        "tries the next of the queue when the first does not fit",
        (
            """\
                break
            heapq.heappop(self.waiting)
""",
            """\
                later = [
                    entry for entry in sorted(self.waiting) if self._blocks(entry[2]) <= self.free_blocks
                ]
                if not later:
                    break
                self.waiting.remove(later[0])
                heapq.heapify(self.waiting)
                sequence = later[0][2]
            else:
                heapq.heappop(self.waiting)
""",
        ),
    ),
    Mutant(
        "waits_for_ever",
        "check_what_can_never_fit_is_refused",
        "a sequence larger than the pool is queued",
        (
            """\
        if self._blocks(sequence) > self.num_blocks:
            raise ValueError(f"{sequence.num_tokens} tokens never fit into {self.num_blocks} blocks")
""",
            "",
        ),
    ),
)
