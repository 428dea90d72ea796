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
    first, later = step_seconds[0], step_seconds[1:]
    again = 0.0
    for length, seconds in enumerate(later, start=prompt_len + 1):
        again += seconds * (length - 1) / length
    return {"ttft": first, "tpot": sum(later) / len(later) if later else None, "again": again}
