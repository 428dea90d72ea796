"""Reference solutions of lesson 09."""

# ruff: noqa: E402

# exercise 09.1
from lessons.given.scheduling import Seq


def choose_victims(running: list[Seq], need: int, free: int) -> list[str]:
    victims = []
    for seq in reversed(running):
        if need <= free:
            break
        victims.append(seq.id)
        free += seq.blocks
    if need > free:
        raise MemoryError(f"{need} blocks needed, {free} in all")
    return victims


# exercise 09.2
from lessons.given.scheduling import Plan, Seq


class Scheduler:
    def __init__(self, max_num_seqs: int, token_budget: int, block_size: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget
        self.block_size = block_size

    def schedule(self, running: list[Seq], waiting: list[Seq], num_free_blocks: int) -> Plan:
        rows: list[tuple[str, int]] = []
        preempted: list[str] = []
        budget, free, running = self.token_budget, num_free_blocks, list(running)
        index = 0
        while index < len(running):
            seq = running[index]
            tokens, need = seq.known - seq.computed, self._num_new_blocks(seq)
            if tokens > budget:
                break
            while need > free and len(running) > index:
                victim = running.pop()
                preempted.append(victim.id)
                free += victim.blocks
            if len(running) == index:  # it was the last one and is preempted itself
                break
            rows.append((seq.id, tokens))
            budget, free, index = budget - tokens, free - need, index + 1
        if preempted or index < len(running):
            return Plan(rows, preempted)
        for seq in waiting:
            tokens, need = seq.known - seq.computed, self._num_new_blocks(seq)
            if tokens > budget or need > free or len(rows) == self.max_num_seqs:
                break
            rows.append((seq.id, tokens))
            budget, free = budget - tokens, free - need
        return Plan(rows, preempted)

    def _num_new_blocks(self, seq: Seq) -> int:
        return max(0, -(-seq.known // self.block_size) - seq.blocks)


# exercise 09.3
def recompute_or_swap(
    num_tokens: int,
    block_size: int,
    block_bytes: int,
    link_bytes_per_second: float,
    seconds_per_token: float,
    seconds_per_pair: float,
) -> tuple[str, float]:
    swap = 2 * -(-num_tokens // block_size) * block_bytes / link_bytes_per_second
    pairs = num_tokens * (num_tokens + 1) // 2
    recompute = num_tokens * seconds_per_token + pairs * seconds_per_pair
    return ("recompute", recompute) if recompute <= swap else ("swap", swap)
