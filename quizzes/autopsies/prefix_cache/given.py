"""A cache of KV by prefix."""

from collections.abc import Callable
from typing import Any


class PrefixCache:
    def __init__(self, max_size: int, compute: Callable[[Any], Any]) -> None:
        self.cache: dict[int, Any] = {}
        self.max_size = max_size
        self.compute = compute

    def get_or_compute(self, prefix: Any) -> Any:
        key = hash(prefix)
        if key in self.cache:
            return self.cache[key]
        kv = self.compute(prefix)
        self.cache[key] = kv
        return kv
