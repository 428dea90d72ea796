"""Checks of the lab swap-tier: single rules, random copies, then the engine's KV manager on the learner's tier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.config.cache import TierConfig
from engine.core.blocks import Block
from engine.core.host_tier import CopyPairs, HostTier
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from lessons.course.checking import Failed, Learner, check, run_fewest
from lessons.labs.serving import Ask, LabScheduler, Service, decide_the_same, requests_of

LAB = "swap-tier"
Op = tuple[Any, ...]
"""("store", step, text), ("load", step, text), ("match", text, device texts) or ("finish", step).

A text is a chain: "abc" are three blocks, whose hashes are those of "a", "ab" and "abc". A store is about the last
block of its text, a load about the blocks that `match` finds for it on the host.
"""


def hash_of(text: str) -> bytes:
    return sha256(text.encode()).digest()


def prefixes(text: str) -> list[str]:
    return [text[:end] for end in range(1, len(text) + 1)]


class Pin(NamedTuple):
    step: int
    is_store: bool
    block: int
    text: str


class Shelf:
    """A second opinion: a list of pins, and the time at which each block became free. It follows the tier's choices."""

    def __init__(self, num_blocks: int) -> None:
        self.ids = range(1, num_blocks + 1)
        self.text: dict[int, str] = {}
        self.freed = dict.fromkeys(self.ids, 0)
        self.pins: list[Pin] = []
        self.time = 0

    def free(self) -> set[int]:
        return set(self.ids) - {pin.block for pin in self.pins}

    def found(self, text: str) -> list[int]:
        return [block for block in self.ids if self.text.get(block) == text]

    def match(self, text: str, device: Sequence[str]) -> tuple[int, list[int]]:
        count = next((at for at, each in enumerate(prefixes(text)) if each not in device), len(text))
        blocks: list[int] = []
        for each in prefixes(text)[count:]:
            if not self.found(each):
                break
            blocks += self.found(each)
        return count, blocks

    def store(self, step: int, text: str, answer: Any) -> str | None:
        """Apply a store; return in words what is wrong with the answer."""
        free = self.free()
        plain = sorted(free - self.text.keys())
        pending = [pin for pin in self.pins if pin.is_store and pin.text == text]
        if self.found(text) or pending or not free:
            why = (
                "it is on the host"
                if self.found(text)
                else "it is being stored"
                if pending
                else "all are pinned"
            )
            return None if answer is None else f"returned {answer!r}; {why}, so it must be None"
        if type(answer) is not int or answer not in free:
            return f"returned {answer!r}; the free blocks are {sorted(free)}"
        oldest = min(free, key=lambda block: (block in self.text, self.freed[block]))
        if answer in self.text and plain:
            return f"returned block {answer}, which has content; block {plain[0]} has none"
        if answer in self.text and answer != oldest:
            return f"returned block {answer}; block {oldest} became free before it"
        self.text.pop(answer, None)
        self.pins.append(Pin(step, True, answer, text))
        return None

    def load(self, step: int, blocks: list[int]) -> None:
        self.pins += [Pin(step, False, block, self.text[block]) for block in blocks]

    def finish(self, step: int) -> None:
        for number in sorted({pin.step for pin in self.pins if pin.step <= step}):
            mine = [pin for pin in self.pins if pin.step == number]
            if number == step:
                self.text.update((pin.block, pin.text) for pin in mine if pin.is_store)
            stores = [pin for pin in mine if pin.is_store]
            for pin in [*stores, *[pin for pin in mine if not pin.is_store][::-1]]:
                self.pins.remove(pin)
                if pin.block in self.free():
                    self.time += 1
                    self.freed[pin.block] = self.time


def replay(learner: Learner, ops: Sequence[Op], num_blocks: int) -> None:
    """Give the calls to the learner's tier; raise Failed at the first answer that differs from the shelf's."""
    tier, shelf = learner.new("HostTier", num_blocks), Shelf(num_blocks)
    said = [f"HostTier({num_blocks})"]

    def look(text: str, device: Sequence[str]) -> list[int]:
        right = shelf.match(text, device)
        said.append(f"match({', '.join(prefixes(text))}; on the device: {', '.join(device) or 'none'})")
        found = tier.match([hash_of(each) for each in prefixes(text)], {hash_of(each) for each in device})
        if found != right:
            raise Failed(f"match returned {found!r}; the prefix is {right}", example="; ".join(said))
        return right[1]

    for kind, *rest in ops:
        if kind == "match":
            look(*rest)
        elif kind == "store":
            step, text = rest
            said.append(f"store({step}, {text})")
            if (words := shelf.store(step, text, tier.store(step, hash_of(text)))) is not None:
                raise Failed(f"store({step}, {text}) {words}", example="; ".join(said))
        elif kind == "load":
            step, text = rest
            if blocks := look(text, []):
                said.append(f"load({step}, {blocks})")
                tier.load(step, blocks)
                shelf.load(step, blocks)
        else:
            said.append(f"finish({rest[0]})")
            tier.finish(*rest)
            shelf.finish(*rest)
        if (free := tier.get("num_free")) != len(shelf.free()):
            words = f"num_free is {free!r}; without a pin are {len(shelf.free())}"
            raise Failed(words, example="; ".join(said))


def expect(learner: Learner, ops: list[Op], num_blocks: int = 4) -> None:
    """Fail with the fewest calls that still go wrong."""
    run_fewest(
        ops, lambda some: replay(learner, some, num_blocks), shown=lambda some: _shown(some, num_blocks)
    )


def _shown(ops: Sequence[Op], num_blocks: int) -> str:
    return f"HostTier({num_blocks}); {'; '.join(' '.join(map(str, op)) for op in ops)}"


def kept(step: int, *texts: str) -> list[Op]:
    """A step that stores these contents and ends."""
    return [*[("store", step, text) for text in texts], ("finish", step)]


def probe(*texts: str) -> list[Op]:
    """Ask for each block alone: its chain up to it is on the device."""
    return [("match", text, prefixes(text)[:-1]) for text in texts]


# -- single rules


@check(LAB)
def stored_is_found_after_its_step(learner: Learner) -> None:
    """Stored content is found once its step has ended, and not before; until then its block is not free."""
    expect(learner, [("store", 0, "a"), *probe("a"), ("finish", 0), *probe("a")])
    expect(
        learner,
        [("store", 3, "a"), ("store", 4, "b"), ("finish", 3), *probe("a", "b"), ("finish", 4), *probe("b")],
    )


@check(LAB)
def a_hit_spans_both_tiers(learner: Learner) -> None:
    """A hit is the part of the chain on the device, then the part on the host, up to the first block on neither."""
    on_host = kept(0, "abcd", "abc", "ab")
    for device in ([], ["a"], ["a", "ab"], ["a", "abc"], ["a", "ab", "abc", "abcd"], ["ab"]):
        expect(learner, [*on_host, ("match", "abcde", device)])
    expect(learner, [*kept(0, "ab", "abcd"), ("match", "abcd", ["a"]), ("match", "abcd", ["a", "abc"])])
    expect(learner, [("match", "abc", ["a"]), ("match", "", [])])


@check(LAB)
def content_is_stored_once(learner: Learner) -> None:
    """Content that is on the host, or that an unfinished step stores, is not stored again: None, nothing changes."""
    expect(learner, [*kept(0, "a", "b"), *kept(1, "a"), *kept(2, "c", "d", "e"), *probe("a", "b")])
    expect(
        learner,
        [("store", 0, "a"), ("store", 0, "a"), ("store", 1, "a"), ("finish", 0), ("finish", 1), *probe("a")],
    )


@check(LAB)
def reused_in_order(learner: Learner) -> None:
    """Blocks without content are taken first, then the block that became free first; its content is gone at once."""
    expect(
        learner,
        [*kept(0, "a", "b"), *kept(1, "c", "d"), *kept(2, "e"), *probe("a", "b"), *kept(3, "f"), *probe("b")],
    )
    expect(
        learner,
        [*kept(0, "a", "b", "c", "d"), ("store", 1, "e"), *probe("a", "b"), ("store", 1, "a"), *probe("b")],
    )
    expect(
        learner,
        [
            ("store", 0, "a"),
            ("store", 1, "b"),
            ("finish", 0),
            ("finish", 1),
            *kept(2, "c", "d", "e"),
            *probe("a"),
        ],
    )


@check(LAB)
def the_end_of_a_chain_goes_first(learner: Learner) -> None:
    """Stored blocks become free in the order of `store`: a device evicts a chain from its end, and so must the host."""
    expect(learner, [*kept(0, "abcd", "abc", "ab", "a"), *kept(1, "x"), ("match", "abcd", [])])
    expect(learner, [*kept(0, "abcd", "abc", "ab", "a"), *kept(1, "x", "y"), ("match", "abcd", [])])


@check(LAB)
def a_load_is_a_use(learner: Learner) -> None:
    """A loaded block becomes free last: after those stored in its step, the end of a hit before its start."""
    base = kept(0, "ab", "a", "x", "y")
    for count in (1, 2, 3, 4):
        more = kept(2, *"pqrs"[:count])
        expect(learner, [*base, ("load", 1, "ab"), ("finish", 1), *more, *probe("x", "y", "ab", "a")])
    expect(
        learner,
        [
            *kept(0, "x", "a"),
            ("load", 1, "a"),
            ("store", 1, "p"),
            ("finish", 1),
            *kept(2, *"qrst"),
            *probe("a"),
        ],
    )
    two = [("load", 1, "a"), ("load", 1, "x"), ("finish", 1)]
    expect(learner, [*kept(0, "a", "x"), *two, *kept(2, "p"), *probe("a", "x")], 2)


@check(LAB)
def a_look_is_no_use(learner: Learner) -> None:
    """`match` changes nothing: neither pins nor the order of reuse."""
    expect(learner, [*kept(0, "a", "b"), *probe("a", "a"), *kept(1, "c"), *probe("a", "b")], 2)


@check(LAB)
def a_pinned_block_stays(learner: Learner) -> None:
    """A block that an unfinished step writes or reads is never reused; without a free block `store` returns None."""
    expect(
        learner,
        [("store", 0, "a"), ("store", 0, "b"), ("store", 0, "c"), ("finish", 0), *probe("a", "b", "c")],
        2,
    )
    expect(
        learner,
        [*kept(0, "a", "b"), ("load", 1, "a"), ("store", 1, "c"), ("store", 1, "d"), *probe("a", "b")],
        2,
    )
    twice = [*kept(0, "a", "b"), ("load", 1, "a"), ("load", 2, "a"), ("finish", 1)]
    expect(
        learner,
        [*twice, ("store", 3, "c"), ("store", 3, "d"), *probe("a"), ("finish", 2), ("store", 3, "d")],
        2,
    )
    expect(
        learner,
        [*kept(0, "a"), ("load", 1, "a"), ("load", 1, "a"), ("finish", 1), *kept(2, "b"), *probe("a", "b")],
        1,
    )


@check(LAB)
def a_failed_step_leaves_nothing(learner: Learner) -> None:
    """When a later step ends, an unfinished one has failed: its stores are no content, and all its pins are dropped."""
    expect(
        learner,
        [("store", 0, "a"), ("store", 1, "b"), ("finish", 1), *probe("a", "b"), *kept(2, "a"), *probe("a")],
    )
    expect(learner, [*kept(0, "a", "b"), ("load", 1, "a"), ("finish", 2), *kept(3, "c"), *probe("a", "b")], 2)
    order = [
        ("load", 1, "a"),
        ("load", 2, "b"),
        ("load", 3, "c"),
        ("finish", 3),
        *kept(4, "d"),
        *probe("a", "b", "c"),
    ]
    expect(learner, [*kept(0, "c", "b", "a"), *order], 3)
    expect(
        learner,
        [
            ("store", 5, "a"),
            ("finish", 4),
            ("finish", 7),
            *probe("a"),
            ("finish", 8),
            *kept(9, "a"),
            *probe("a"),
        ],
    )


@check(LAB)
def failed_steps_end_in_order(learner: Learner) -> None:
    """Failed steps are dropped in the order of their numbers, each like a step that ends: its loads last to first."""
    base = kept(0, "a", "x", "y")
    for loads in ([(2, "x"), (1, "a")], [(1, "a"), (2, "x")], [(3, "a"), (1, "x"), (2, "y")]):
        held = [("load", step, text) for step, text in loads]
        expect(learner, [*base, *held, ("finish", 4), *kept(5, "p"), *probe("a", "x", "y")], 3)
    twice = [("load", 1, "a"), ("load", 1, "x"), ("load", 1, "y"), ("finish", 2)]
    expect(learner, [*base, *twice, *kept(3, "p"), *probe("a", "x", "y")], 3)


@check(LAB)
def only_content_is_read(learner: Learner) -> None:
    """`load` raises ValueError for a block without content, and pins none of the others."""
    tier = learner.new("HostTier", 3)
    first = tier.store(0, hash_of("a"))
    tier.finish(0)
    second = tier.store(1, hash_of("b"))
    said = f"HostTier(3); store(0, a) -> {first}; finish(0); store(1, b) -> {second}"
    (third,) = {1, 2, 3} - {first, second}
    for blocks in ([first, second], [third], [first, third]):
        try:
            tier.load(1, blocks)
        except ValueError:
            if (free := tier.get("num_free")) != 2:
                words = f"load(1, {blocks}) is refused, and num_free is {free!r}; 2 blocks have no pin"
                raise Failed(words, example=said) from None
        else:
            raise Failed(f"load(1, {blocks}) must raise ValueError: a block has no content", example=said)
    tier.finish(1)
    if (found := tier.match([hash_of("a")], set())) != (0, [first]):
        raise Failed(f"after the refused loads, match(a) returned {found!r}", example=said)


@check(LAB)
def random_copies(learner: Learner) -> None:
    """720 random calls, with steps that overlap and fail, agree with a list of pins and times."""
    for seed in range(18):
        rng = Random(seed)
        begun, ended = 0, 0
        ops: list[Op] = []
        for _ in range(40):
            text = rng.choice(["abcd", "abxy", "xyz"])[: rng.randint(1, 4)]
            kind = rng.choices(["store", "load", "match", "finish"], [6, 3, 2, 3])[0]
            if kind == "finish":
                ended = min(begun, ended + rng.choice([1, 1, 1, 2]))
                ops.append(("finish", ended))
            elif kind == "match":
                ops.append(("match", text, rng.sample(prefixes(text), rng.randint(0, len(text)))))
            else:
                begun = max(begun, ended + 1, begun + rng.choice([0, 0, 1]))
                ops.append((kind, begun, text))
        expect(learner, ops, rng.choice([1, 2, 3, 5]))


# -- the engine's KV manager


class LabTier(HostTier):
    """The engine's tier with the learner's choices; its own record judges each answer."""

    def __init__(self, num_blocks: int, tier: Any) -> None:
        super().__init__(num_blocks)
        self.tier, self.step = tier, 0

    def offload(self, block: Block) -> bool:
        may = self._find(block.block_hash) is None and len(self.pool.free) > 0
        found = self.tier.store(self.step, block.block_hash)
        if (found is not None) != may:
            words = "it is on the host or being stored, or all are pinned" if not may else "a block is free"
            raise Failed(
                f"step {self.step}: store of device block {block.block_id} returned {found!r}; {words}"
            )
        if not may:
            return False
        if not isinstance(found, int) or not 1 <= found < len(self.pool.blocks):
            raise Failed(f"step {self.step}: store returned {found!r}, which is not a host block")
        chosen = self.pool.blocks[found]
        order = list(self.pool.free)
        if chosen not in order or (chosen.block_hash is not None and chosen is not order[0]):
            raise Failed(
                f"step {self.step}: store returned {found}; block {order[0].block_id} is to be reused first"
            )
        self.pool.free.remove(chosen)
        self.pool.free.push_front(chosen)
        return super().offload(block)

    def hold(self, hit: Sequence[Block]) -> None:
        super().hold(hit)
        if hit:
            self.tier.load(self.step, [block.block_id for block in hit])

    def close_step(self, step: int) -> tuple[CopyPairs, CopyPairs]:
        self.step = step + 1
        return super().close_step(step)

    def end_step(self, step: int) -> None:
        super().end_step(step)
        self.tier.finish(step)
        if (free := self.tier.get("num_free")) != len(self.pool.free):
            raise Failed(f"after step {step}, num_free is {free!r}; without a pin are {len(self.pool.free)}")


class LabKV(KVManager):
    """The engine's KV manager on the learner's tier."""

    def __init__(self, config: CacheConfig, tier: Any, **options: Any) -> None:
        super().__init__(config, **options)
        self.lab_tier = self.host = LabTier(config.tiers.num_host_blocks, tier)
        self.pool.before_eviction = self.host.offload

    def match(self, request: Request) -> PrefixHit:
        hit = super().match(request)
        hashes = request.block_hashes[: self._max_hit(request)]
        found = self.lab_tier.tier.match(hashes, set(self.pool.cached))
        right = len(hit.device), [block.block_id for block in hit.host]
        if found != right:
            words = f"match for {request.request_id} returned {found!r}; the prefix is {right}"
            raise Failed(f"step {self.lab_tier.step}: {words}")
        return hit


def behind_engine(learner: Learner, config: SchedulerConfig, cache: CacheConfig) -> Scheduler:
    """Return the engine's scheduler on the learner's host tier."""
    tier = learner.new("HostTier", cache.tiers.num_host_blocks)
    return LabScheduler(config, cache, partial(LabKV, tier=tier))


def service(asks: Sequence[Ask], num_host: int, learner: Learner | None = None) -> Service:
    """Return the engine's scheduler with a small device cache, on its own host tier or the learner's; and requests."""
    config = SchedulerConfig(24, 2, 64)
    cache = CacheConfig(10, 4, True, tiers=TierConfig(num_host, offload=True))
    scheduler = Scheduler(config, cache) if learner is None else behind_engine(learner, config, cache)
    return scheduler, requests_of(asks)


@check(LAB)
def the_kv_manager_runs_on_it(learner: Learner) -> None:
    """The engine's scheduler and KV manager offload to it and copy back from it, with the hits of the engine's tier."""
    rng = Random(5)
    for count in (2, 3, 4, 6, 8, 10, 12, 14):
        num_host = rng.choice([4, 8, 16])
        asks = [
            Ask(rng.randint(0, 2), rng.randint(12, 20), rng.randint(0, 2), rng.randint(1, 6))
            for _ in range(count)
        ]
        decide_the_same(
            LAB,
            asks,
            partial(service, num_host=num_host),
            partial(service, num_host=num_host, learner=learner),
            "on the engine's tier",
            f"{num_host} host blocks, 9 device blocks of 4 tokens; {{}}".format,
        )
