"""Requests on a prefix cache in the process that holds it: the checks of the lab prefix-cache."""

from __future__ import annotations

from typing import Any


def replay(
    make: Any, num_blocks: int, size: int, calls: list[tuple[Any, ...]]
) -> list[tuple[str | None, Any, int]]:
    """Make the calls of requests on a new cache. Returns for each (None, the cache's answer, num_free), or ("skipped",
    None, num_free) for a call that makes no sense any more because an earlier one is missing or was refused.

    start name tokens salt adapter   match, allocate for all tokens            -> (hit, fresh blocks or None)
    grow name count                  allocate([], count)                       -> fresh blocks or None
    publish name                     publish the next full block of its table  -> True or False
    end name                         release its table                         -> None or the name of an error
    again name                       release its last table once more          -> None or the name of an error
    """
    cache = make(num_blocks, size)
    tables: dict[str, list[int]] = {}
    ended: dict[str, list[int]] = {}
    waiting: dict[str, list[tuple[int, bytes]]] = {}
    found: list[tuple[str | None, Any, int]] = []
    for kind, name, *rest in calls:
        answer: Any = None
        if (kind in ("grow", "publish", "end")) != (name in tables) or (
            kind == "again" and name not in ended
        ):
            found.append(("skipped", None, cache.num_free))
            continue
        if kind == "start":
            tokens, salt, adapter = rest
            hashes = cache.hashes(list(tokens), salt, adapter)
            hit = cache.match(list(hashes), len(tokens))
            fresh = cache.allocate(list(hit), -(-len(tokens) // size) - len(hit))
            if fresh is not None:
                tables[name] = [*hit, *fresh]
                waiting[name] = list(zip(tables[name], hashes, strict=False))[len(hit) :]
            answer = (hit, fresh)
        elif kind == "grow":
            answer = cache.allocate([], rest[0])
            tables[name] += answer or []
        elif kind == "publish":
            if waiting[name]:
                answer = cache.publish(*waiting[name].pop(0))
        else:
            table = tables.pop(name) if kind == "end" else ended.pop(name)
            ended[name] = list(table)
            try:
                cache.release(table)
            except ValueError as error:
                answer = type(error).__name__
        found.append((None, answer, cache.num_free))
    return found
