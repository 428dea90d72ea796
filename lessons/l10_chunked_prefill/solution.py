"""Reference solutions of lesson 10."""

# ruff: noqa: E402

# exercise 10.1
from lessons.given.scheduling import Plan, Seq


class ChunkedScheduler:
    def __init__(self, max_num_seqs: int, token_budget: int, block_size: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget
        self.block_size = block_size

    def schedule(self, running: list[Seq], waiting: list[Seq], num_free_blocks: int) -> Plan:
        rows: list[tuple[str, int]] = []
        preempted: list[str] = []
        budget, free, running = self.token_budget, num_free_blocks, list(running)
        index = 0
        while index < len(running) and budget:
            seq = running[index]
            tokens = min(seq.known - seq.computed, budget)
            need = self._num_blocks(seq.computed + tokens) - seq.blocks
            while need > free and len(running) > index:
                victim = running.pop()
                preempted.append(victim.id)
                free += victim.blocks
            if len(running) == index:  # it was the last and is preempted itself
                break
            rows.append((seq.id, tokens))
            budget, free, index = budget - tokens, free - max(need, 0), index + 1
        for seq in [] if preempted else waiting:
            need = self._num_blocks(seq.known) - seq.blocks
            if not budget or need > free or len(running) == self.max_num_seqs:
                break
            tokens = min(seq.known - seq.computed, budget)
            rows.append((seq.id, tokens))
            running.append(seq)
            budget, free = budget - tokens, free - need
        return Plan(rows, preempted)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


# exercise 10.2
from collections.abc import Callable
from math import ceil


def budget_for_slo(
    replay: Callable[[int, int], tuple[float, list[float]]],
    budgets: list[int],
    seeds: list[int],
    itl_slo: float,
) -> int | None:
    ttft_of = {}
    for budget in budgets:
        total = 0.0
        for seed in seeds:
            ttft, gaps = replay(budget, seed)
            if sorted(gaps)[ceil(len(gaps) * 99 / 100) - 1] > itl_slo:
                break
            total += ttft
        else:
            ttft_of[budget] = total / len(seeds)
    return min(ttft_of, key=lambda budget: (ttft_of[budget], budget), default=None)


# exercise 10.3
def chunk_costs(prompt_len: int, chunk: int, cached: int = 0) -> dict[str, int]:
    ends = [*range(cached + chunk, prompt_len, chunk), prompt_len]
    pairs = sum(position + 1 for position in range(cached, prompt_len))
    return {"passes": len(ends), "kv_read": sum(ends), "pairs": pairs}
