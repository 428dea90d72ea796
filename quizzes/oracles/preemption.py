"""Running out of KV blocks, on paper: counting blocks per step, and a small simulation with lengths only."""

from collections.abc import Sequence


def blocks_for(tokens: int, block_size: int) -> int:
    return (tokens + block_size - 1) // block_size


def first_shortage_step(prompts: list[int], num_blocks: int, block_size: int = 16) -> int:
    """All start in step 0; in step s each of them has KV for its prompt and s tokens. The first s that is too much."""
    step = 0
    while sum(blocks_for(prompt + step, block_size) for prompt in prompts) <= num_blocks:
        step += 1
    return step


def tokens_at_shortage(prompts: list[int], num_blocks: int, block_size: int = 16) -> int:
    """KV of the request that came last, before the step that does not fit."""
    return prompts[-1] + first_shortage_step(prompts, num_blocks, block_size) - 1


def least_important(priorities: list[int]) -> int:
    """The largest priority number; of equals the one that came last."""
    return max(range(len(priorities)), key=lambda i: (priorities[i], i))


def _paper(
    prompts: list[int], outputs: list[int], num_blocks: int, block_size: int, priorities: Sequence[int] = ()
) -> tuple[list[int], int, list[int]]:
    """(victims in order, positions computed, last step of each): all arrive at once, no budget, no cache.

    Rows of a table: KV (0 while out), output so far. One line of the table is one step.
    """
    order = sorted(range(len(prompts)), key=lambda i: ((priorities or [0] * len(prompts))[i], i))
    kv, made = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
    inside: list[int] = []
    victims: list[int] = []
    end: dict[int, int] = {}
    computed, step = 0, 0
    while len(end) < len(order):
        lost = False
        served: list[int] = []
        for who in [i for i in order if i in inside]:
            if who not in inside:
                continue
            want = prompts[who] + made[who]
            while who in inside:
                others = [i for i in inside if i != who]
                held = [prompts[i] + made[i] if i in served else kv[i] for i in others]
                if sum(blocks_for(tokens, block_size) for tokens in [*held, want]) <= num_blocks:
                    break
                worst = [i for i in order if i in inside][-1]
                inside.remove(worst)
                victims.append(worst)
                kv[worst], lost = 0, True
            if who in inside:
                served.append(who)
        if not lost:
            for who in [i for i in order if i not in inside and i not in end]:
                total = sum(blocks_for(prompts[i] + made[i], block_size) for i in [*inside, who])
                if total > num_blocks:
                    break
                inside.append(who)
                served.append(who)
        for who in served:
            computed += prompts[who] + made[who] - kv[who]
            kv[who] = prompts[who] + made[who]
            made[who] += 1
            if made[who] == outputs[who]:
                inside.remove(who)
                end[who] = step
        step += 1
    return victims, computed, [end[i] for i in range(len(prompts))]


def victims_in_order(
    prompts: list[int],
    outputs: list[int],
    num_blocks: int,
    block_size: int = 16,
    priorities: Sequence[int] = (),
) -> list[int]:
    return _paper(prompts, outputs, num_blocks, block_size, priorities)[0]


def recomputed(
    prompts: list[int],
    outputs: list[int],
    num_blocks: int,
    block_size: int = 16,
    priorities: Sequence[int] = (),
) -> int:
    """Positions computed more than once."""
    once = sum(prompt + output - 1 for prompt, output in zip(prompts, outputs, strict=True))
    return _paper(prompts, outputs, num_blocks, block_size, priorities)[1] - once


def total_steps(prompts: list[int], outputs: list[int], num_blocks: int, block_size: int = 16) -> int:
    return max(_paper(prompts, outputs, num_blocks, block_size)[2]) + 1


def swapped_blocks(prompt: int, num_blocks: int, block_size: int = 16, victim_prompt: int = 0) -> int:
    """Full blocks of the second of two requests when the pool is used up; victim_prompt 0: both are equal."""
    return tokens_at_shortage([prompt, victim_prompt or prompt], num_blocks, block_size) // block_size


def swap_leftover(prompt: int, num_blocks: int, block_size: int = 16, victim_prompt: int = 0) -> int:
    """Tokens in its last block, which is not full and is not copied."""
    return tokens_at_shortage([prompt, victim_prompt or prompt], num_blocks, block_size) % block_size


def llama_8b_swap_ms(tokens: int, gigabytes_per_s: float) -> float:
    """Out and in: 2 (K, V) x 32 layers x 8 KV heads x 128 x 2 bytes a token, 8.6 microseconds to start a copy."""
    kv_bytes = 2 * 32 * 8 * 128 * 2 * tokens
    return 2 * (1000 * kv_bytes / (gigabytes_per_s * 1e9) + 0.0086)


def safe_limit(prompt: int, output: int, num_blocks: int, block_size: int = 16) -> int:
    """Requests that all fit at their final length; the last token is never computed."""
    return num_blocks // blocks_for(prompt + output - 1, block_size)


def recomputed_with_cache(prompt: int, num_blocks: int, block_size: int = 16, output: int = 60) -> int:
    """Two equal requests: the survivor reuses the victim's last blocks while it grows; the others are still hits."""
    kept_full = tokens_at_shortage([prompt, prompt], num_blocks, block_size) // block_size
    taken = blocks_for(prompt + output - 1, block_size) - (kept_full + 1)
    return block_size * taken
