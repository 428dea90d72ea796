"""Hits, misses and confused blocks."""

from types import ModuleType
from typing import Any


def _counting(given: ModuleType, max_size: int = 100) -> tuple[Any, list[int]]:
    computed: list[int] = []

    def compute(prefix: Any) -> tuple[Any, ...]:
        computed.append(len(prefix))
        return tuple(prefix)

    return given.PrefixCache(max_size, compute), computed


def list_as_prefix(given: ModuleType) -> int:
    """Token ids as engines hold them: a list."""
    cache, computed = _counting(given)
    cache.get_or_compute([1, 2, 3])
    return sum(computed)


def tokens_computed(given: ModuleType, *, shared: int = 400, own: int = 20, requests: int = 5) -> int:
    """Tokens that are computed for requests that share their first tokens and differ behind them."""
    cache, computed = _counting(given)
    for request in range(requests):
        start = 10_000 * (request + 1)
        cache.get_or_compute(tuple(range(shared)) + tuple(range(start, start + own)))
    return sum(computed)


def same_prompt_again(given: ModuleType, *, tokens: int = 100) -> int:
    """Tokens computed for one prompt that comes twice."""
    cache, computed = _counting(given)
    for _ in range(2):
        cache.get_or_compute(tuple(range(tokens)))
    return sum(computed)


def entries_kept(given: ModuleType, *, max_size: int = 10, prompts: int = 50) -> int:
    """Entries after more prompts than max_size."""
    cache, _ = _counting(given, max_size)
    for i in range(prompts):
        cache.get_or_compute((i, i + 1))
    return len(cache.cache)


def gets_its_own(
    given: ModuleType, *, first: tuple[int, ...] = (5, -1), second: tuple[int, ...] = (5, -2)
) -> bool:
    """Whether the second of two different prefixes gets its own KV."""
    cache, _ = _counting(given)
    cache.get_or_compute(tuple(first))
    return bool(cache.get_or_compute(tuple(second)) == tuple(second))
