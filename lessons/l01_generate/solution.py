"""Reference solutions of lesson 01."""

# ruff: noqa: E402, F811

# exercise 01.1
from collections.abc import Callable, Collection


def greedy_generate(
    model: Callable[[list[int]], list[float]],
    prompt_ids: list[int],
    max_tokens: int,
    eos_ids: Collection[int],
) -> list[int]:
    """Return the new tokens of a greedy generation without a cache.

    model: returns the logits that follow a sequence of token ids. Of equal logits the smallest id wins.
    Stops after max_tokens tokens, or after a token in eos_ids, which is part of the result.
    """
    generated: list[int] = []
    while len(generated) < max_tokens:
        logits = model(prompt_ids + generated)
        token = max(range(len(logits)), key=logits.__getitem__)
        generated.append(token)
        if token in eos_ids:
            break
    return generated


# exercise 01.2
from collections.abc import Callable
from statistics import median, quantiles


def measure(
    run: Callable[[], object], clock: Callable[[], float], warmup: int = 3, repeats: int = 10
) -> dict[str, float]:
    """Return the median and the quartiles of the seconds that run() takes: median, low (25 %), high (75 %).

    clock: returns seconds. The first `warmup` runs do not count. Quartiles interpolate as numpy.percentile does.
    Raises ValueError if repeats < 2: one time has no spread.
    """
    if repeats < 2:
        raise ValueError(f"repeats is {repeats}; at least 2 are needed to see a spread")
    for _ in range(warmup):
        run()
    seconds = []
    for _ in range(repeats):
        began = clock()
        run()
        seconds.append(clock() - began)
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return {"median": median(seconds), "low": low, "high": high}


# exercise 01.3
def split_time(prompt_len: int, step_seconds: list[float]) -> dict[str, float | None]:
    """Split the time of a generation without a cache: ttft, tpot and again, in seconds.

    step_seconds[i]: time of the forward pass over prompt_len + i tokens, which gives output token i.
    ttft: time to first token. tpot: mean time per later token, None if there is only one token.
    again: time spent on tokens that an earlier pass had computed; the tokens of a pass share its time equally.
    """
    first, later = step_seconds[0], step_seconds[1:]
    again = 0.0
    for length, seconds in enumerate(later, start=prompt_len + 1):
        again += seconds * (length - 1) / length
    return {"ttft": first, "tpot": sum(later) / len(later) if later else None, "again": again}
