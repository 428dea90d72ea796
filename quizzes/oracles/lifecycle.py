"""The life of one request in closed forms."""

from quizzes.oracles.batching import starts


def blocks_at_end(prompt: int, output: int, block_size: int = 16) -> int:
    """The last token is sampled and never computed."""
    return -(-(prompt + output - 1) // block_size)


def alloc_steps(prompt: int, output: int, budget: int, block_size: int = 16) -> list[int]:
    """Step 0 takes the whole prompt's blocks; later one whenever a decode begins a new block."""
    first_decode = -(-prompt // budget)
    later = [step for step in range(1, output) if (prompt + step - 1) % block_size == 0]
    return [0, *(first_decode + step - 1 for step in later)]


def total_steps(prompt: int, output: int, budget: int) -> int:
    """Prompt chunks, the last of which gives the first token, then a step for each other token."""
    return -(-prompt // budget) + output - 1


def hit_tokens(prompt: int, shared: int, block_size: int = 16) -> int:
    """Full blocks of the common beginning; at least one token of the prompt is computed."""
    return min(shared, prompt - 1) // block_size * block_size


def computed_with_hit(prompt: int, output: int, shared: int, block_size: int = 16) -> int:
    return prompt + output - 1 - hit_tokens(prompt, shared, block_size)


def first_iterations(slots: int, lens: list[int]) -> list[int]:
    """The iteration (from 1) that runs each request first."""
    return [start + 1 for start in starts(slots, lens)]


def first_of_last(slots: int, lens: list[int]) -> int:
    return first_iterations(slots, lens)[-1]


def ends_after(eos_at: int, stop_id_at: int, max_tokens: int, min_tokens: int = 0) -> int:
    """The earliest of what applies; end-of-sequence and stop ids do not count before min_tokens."""
    candidates = [max_tokens]
    candidates += [at for at in (eos_at, stop_id_at) if at and at >= min_tokens]
    return min(candidates)


def blocks_freed(prompt: int, at_step: int, block_size: int = 16) -> int:
    """The prompt and one token per step since."""
    return -(-(prompt + at_step - 1) // block_size)
