"""A scheduler that logs its calls in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.core.scheduler import Scheduler


class Log:
    """(step, event) pairs. Events of the same name in one step are written once."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str]] = []
        self.step = 0

    def write(self, event: str) -> None:
        if (self.step, event) not in self.entries:
            self.entries.append((self.step, event))

    def first_order(self) -> list[str]:
        """Each event once, in the order of first occurrence."""
        return list(dict.fromkeys(event for _, event in self.entries))


def watch(owner: Any, method: str, before: Callable[[], None], after: Callable[[Any], object] = id) -> None:
    """Call `before` and `after(result)` around every call of a method of an object."""
    call = getattr(owner, method)

    def watched(*args: Any, **kwargs: Any) -> Any:
        before()
        result = call(*args, **kwargs)
        after(result)
        return result

    setattr(owner, method, watched)


def spying(log: Log) -> Callable[..., Scheduler]:
    """Return a factory of logging schedulers for `ctx.core(make_scheduler=...)`."""

    def make(*args: Any, **kwargs: Any) -> Scheduler:
        scheduler = Scheduler(*args, **kwargs)
        kv = scheduler.kv
        watch(kv, "match", lambda: log.write("prefix_lookup"))
        watch(kv, "admit", _nothing, lambda ids: log.write("blocks_taken") if ids else None)
        watch(kv, "allocate", _nothing, lambda ids: log.write("blocks_taken") if ids else None)
        watch(kv, "publish", lambda: log.write("update"))
        watch(kv, "forget", lambda: log.write("blocks_freed"))
        watch(scheduler, "update", lambda: log.write("forward"))
        return scheduler

    return make


def _nothing() -> None:
    pass
