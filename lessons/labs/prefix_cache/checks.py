"""Checks of the lab prefix-cache: hashes, single rules, random requests, the engine's KV manager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from engine.config import CacheConfig, SchedulerConfig
from engine.core.blocks import Block, BlockPool
from engine.core.kv_manager import KVManager, PrefixHit
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from lessons.course.checking import Failed, Learner, check, fewest
from lessons.labs.serving import Ask, LabScheduler, Service, decide_the_same, requests_of
from prep_common.sandbox import GuestError

LAB = "prefix-cache"
Call = tuple[Any, ...]
"""A call of `lessons.given.prefix_load.replay`; the tokens of a start are a string of letters here."""
Key = tuple[str | None, str | None, str]
"""Content of a block: salt, adapter, and all letters up to its end."""


class Texts:
    """A second opinion that stores texts and times, no hashes and no queue. It follows the cache's choice of blocks."""

    def __init__(self, num_blocks: int, size: int) -> None:
        self.ids, self.size, self.time = range(1, num_blocks), size, 0
        self.owners: Counter[int] = Counter()
        self.text: dict[int, Key] = {}
        """Findable block -> its content."""
        self.freed: dict[int, int] = {}
        """Block -> when it became free last."""
        self.tables: dict[str, list[int]] = {}
        self.ended: dict[str, list[int]] = {}
        self.waiting: dict[str, list[tuple[int, Key]]] = {}

    def judge(self, call: Call, answer: Any, num_free: Any) -> str | None:
        """Apply a call; return in words how the cache's answer differs."""
        kind, name, *rest = call
        words: str | None = None
        if kind == "start":
            words = self._start(name, rest[0], rest[1], rest[2], *answer)
        elif kind == "grow":
            words = self._fresh(name, [], rest[0], answer)
        elif kind == "publish" and self.waiting[name]:
            block, key = self.waiting[name].pop(0)
            if answer is not (key not in self.text.values()):
                words = f"publish returned {answer!r}; {'a' if answer else 'no'} block stands for this hash"
            elif answer:
                self.text[block] = key
        elif kind in ("end", "again"):
            words = self._release(name, kind, answer)
        free = len(self.ids) - sum(count > 0 for count in self.owners.values())
        return words or (
            f"num_free is {num_free!r}; {free} blocks have no owner" if num_free != free else None
        )

    def _start(
        self, name: str, text: str, salt: str | None, adapter: str | None, hit: Any, fresh: Any
    ) -> str | None:
        keys: list[Key] = [(salt, adapter, text[: end * self.size]) for end in range(1, len(text) + 1)]
        expected: list[int] = []
        for key in keys[: (len(text) - 1) // self.size]:
            same = [block for block, held in self.text.items() if held == key]
            if not same:
                break
            expected += same
        if hit != expected:
            return f"match returned {hit!r}; the longest prefix that can be shared is {expected}"
        words = self._fresh(name, expected, -(-len(text) // self.size) - len(expected), fresh)
        if words is None and fresh is not None:
            full = len(text) // self.size
            blocks = zip(self.tables[name][:full], keys[:full], strict=True)
            self.waiting[name] = list(blocks)[len(expected) :]
        return words

    def _fresh(self, name: str, hit: list[int], count: int, fresh: Any) -> str | None:
        left = {block for block in self.ids if not self.owners[block]} - set(hit)
        said = f"allocate({hit}, {count}) returned {fresh!r}; "
        if count > len(left):
            return None if fresh is None else f"{said}{len(left)} other blocks are free, so it must be None"
        if not isinstance(fresh, list) or len(fresh) != count:
            return f"{said}{len(left)} other blocks are free, so it must be {count} of them"
        for block in fresh:
            if block not in left:
                return f"{said}block {block} is not free"
            plain = sorted(left - self.text.keys())
            oldest = min(left & self.text.keys(), key=lambda each: self.freed[each], default=block)
            if block in self.text and plain:
                return f"{said}block {block} has a hash, and block {plain[0]} has none"
            if block in self.text and block != oldest:
                return f"{said}block {oldest} became free before block {block}"
            left.remove(block)
            self.text.pop(block, None)
        self.owners.update([*hit, *fresh])
        self.tables[name] = [*self.tables.get(name, []), *hit, *fresh]
        return None

    def _release(self, name: str, kind: str, answer: Any) -> str | None:
        table = self.tables.pop(name) if kind == "end" else self.ended.pop(name)
        self.ended[name] = table
        if any(not self.owners[block] for block in table):
            return None if answer == "ValueError" else "release raised nothing; a block has no owner"
        for block in table[::-1]:
            self.time += 1
            self.owners[block] -= 1
            self.freed[block] = self.time
        return None if answer is None else f"release raised {answer}; each block has an owner"


def first_difference(
    learner: Learner, calls: Sequence[Call], num_blocks: int, size: int
) -> tuple[int, str] | None:
    """Replay calls on a new cache; return the index of the first wrong answer, and what is wrong."""
    plain = [
        (kind, name, list(map(ord, rest[0])), *rest[1:]) if kind == "start" else (kind, name, *rest)
        for kind, name, *rest in calls
    ]
    cache = learner.get("PrefixCache")
    try:
        found = learner.call("lessons.given.prefix_load:replay", cache, num_blocks, size, plain)
    except GuestError as error:
        if error.is_stub:
            raise
        return len(calls), str(error)
    model = Texts(num_blocks, size)
    for index, (call, (skipped, answer, num_free)) in enumerate(zip(calls, found, strict=True)):
        if skipped is None and (words := model.judge(call, answer, num_free)):
            return index, words
    return None


def as_code(calls: Sequence[Call], num_blocks: int, size: int) -> str:
    shown = []
    for kind, name, *rest in calls:
        while rest and rest[-1] is None:
            rest.pop()
        shown.append(f"{kind} {name}{''.join(f' {each!r}' for each in rest)}")
    return f"PrefixCache({num_blocks}, {size}): {'; '.join(shown)}"


def expect(learner: Learner, calls: list[Call], num_blocks: int = 7, size: int = 2) -> None:
    """Fail with the fewest calls that still go wrong."""
    if first_difference(learner, calls, num_blocks, size) is None:
        return
    calls = fewest(calls, lambda some: first_difference(learner, some, num_blocks, size) is not None)
    index, words = first_difference(learner, calls, num_blocks, size) or (len(calls), "two replays differ")
    raise Failed(words, example=as_code(calls[: index + 1], num_blocks, size))


def start(name: str, text: str, salt: str | None = None, adapter: str | None = None) -> Call:
    return ("start", name, text, salt, adapter)


def served(name: str, text: str, size: int = 2) -> list[Call]:
    """A request that starts, publishes its full blocks and ends."""
    return [start(name, text), *[("publish", name)] * (len(text) // size), ("end", name)]


# -- hashes


def digests(cache: Any, tokens: list[int], *keys: str | None) -> list[bytes]:
    found = cache.hashes(tokens, *keys)
    if not isinstance(found, list) or any(type(each) is not bytes or len(each) < 16 for each in found):
        raise Failed(
            f"hashes returned {found!r}; expected a list of digests, bytes of length 16 or more",
            example=tokens,
        )
    return found


@check(LAB)
def a_hash_covers_all_before(learner: Learner) -> None:
    """A full block's hash depends on its tokens, their order and all tokens before it; a partial block has none."""
    cache = learner.new("PrefixCache", 4, 2)
    tokens = [1, 23, 5, 6, 7, 8, 9]
    before = digests(cache, tokens)
    if len(before) != 3 or len(digests(cache, tokens[:6])) != 3 or digests(cache, [4]) != []:
        raise Failed(f"7 tokens in blocks of 2 gave {len(before)} hashes; 3 are full", example=tokens)
    for index, changed in enumerate(
        [
            [12, 3, *tokens[2:]],
            [23, 1, *tokens[2:]],
            [2**63 - 1, *tokens[1:]],
            [*tokens[:3], 4, *tokens[4:]],
            [*tokens[:4], 8, 7, 9],
            [*tokens[:6], 3],
        ]
    ):
        first = (0, 0, 0, 1, 2, 3)[index]
        same = [mine == theirs for mine, theirs in zip(digests(cache, changed), before, strict=True)]
        if same != [block < first for block in range(3)]:
            raise Failed(
                f"blocks with equal hashes: {same}; they differ from block {first} on", example=changed
            )
    if len(set(digests(cache, [5] * 8))) != 4:
        raise Failed("two blocks of one request have the same hash", example=[5] * 8)


@check(LAB)
def all_bits_of_a_token_count(learner: Learner) -> None:
    """Token ids are 0 to 2**63 - 1: two that differ in one bit, whichever, give different hashes."""
    cache, seen = learner.new("PrefixCache", 4, 2), dict[bytes, int]()
    for token in [0, *(1 << bit for bit in range(63)), 2**32 - 1, 2**53 + 1, 2**63 - 2, 2**63 - 1]:
        [found] = digests(cache, [token, 7])
        if found in seen:
            raise Failed(f"the tokens {seen[found]} and {token} have the same hash", example=[token, 7])
        seen[found] = token


@check(LAB)
def salt_and_adapter_separate(learner: Learner) -> None:
    """Requests share hashes exactly if salt and adapter are both equal, whatever strings they are."""
    cache = learner.new("PrefixCache", 4, 2)
    names = [None, "a", "b", "ab", "None", "a|b", "a,", "'a', 'b'", "0", "\0", "a\0"]
    pairs = [(salt, adapter) for salt in names for adapter in names]
    seen: dict[bytes, object] = {}
    for pair in pairs:
        found = digests(cache, [1, 2, 3, 4], *pair)
        if found != digests(cache, [1, 2, 3, 4], *pair):
            raise Failed("the same request has two hashes", example=f"salt, adapter = {pair}")
        for each in found:
            if each in seen:
                raise Failed("two requests share a hash", example=f"salt, adapter = {seen[each]} and {pair}")
            seen[each] = pair


BORDERS = [
    *(chr(code) for code in (*range(33), *range(33, 48), *range(58, 65), *range(91, 97), *range(123, 128), 160)),
    "::", "||", "--", "__", "//", "', '", '", "', "'|'", ", None", "None", "null", "<sep>", "salt", "adapter",
]  # fmt: skip
"""Texts that a file may put between salt and adapter, or in place of one that is missing."""


@check(LAB)
def no_border_can_be_forged(learner: Learner) -> None:
    """A user chooses the salt: with any border between salt and adapter, no salt makes a request look like another."""
    cache = learner.new("PrefixCache", 4, 2)
    for border in BORDERS:
        seen: dict[bytes, object] = {}
        for pair in (
            ("a", f"b{border}c"), (f"a{border}b", "c"), ("a", "b"), (f"a{border}b", None), (None, f"a{border}b"),
            (f"a{border}", "b"), ("a", f"{border}b"), ("a", None), (f"a{border}", None), (None, "a"),
            (None, f"{border}a"), ("a", border), (border, "a"),
        ):  # fmt: skip
            [found] = digests(cache, [1, 2], *pair)
            if found in seen:
                raise Failed("two requests share a hash", example=f"salt, adapter = {seen[found]} and {pair}")
            seen[found] = pair


@check(LAB)
def any_string_is_a_salt(learner: Learner) -> None:
    """Salt and adapter are any non-empty string, such as half a surrogate pair, 10,000 characters, other scripts."""
    cache, seen = learner.new("PrefixCache", 4, 2), dict[bytes, str]()
    for text in ("\ud800", "\udfff", "\U0001f600", "é", "e\u0301", "東京", "x" * 10_000, "x" * 9_999 + "y"):
        for pair in ((text, None), (None, text)):
            [found] = digests(cache, [1, 2], *pair)
            if found in seen:
                raise Failed(f"two requests share a hash: {seen[found]:.40} and {pair!r:.40}", example=pair)
            seen[found] = repr(pair)


# -- single rules


@check(LAB)
def a_hit_is_a_prefix(learner: Learner) -> None:
    """match returns the longest prefix that is published: it ends at the first block that is not findable."""
    expect(
        learner,
        [*served("a", "aabbccd"), start("b", "aabbccdd"), start("c", "aaxxcc"), start("d", "bbccd")],
        12,
    )
    both = [start("a", "aab"), start("b", "aabbc"), ("publish", "a"), ("publish", "b"), ("publish", "b")]
    expect(
        learner, [*both, ("end", "a"), start("c", "zzzzz"), ("end", "c"), start("d", "aabbd")]
    )  # bb is there
    expect(learner, [start("a", "aabbcc"), start("b", "aabbcc")], 12)
    expect(learner, [start("a", "aabbcc"), ("publish", "a"), start("b", "aabbcc")], 12)
    salted = [start("a", "aabbc", "s"), ("publish", "a"), start("b", "aabbc"), start("c", "aabbc", None, "s")]
    expect(learner, [*salted, start("d", "aabbc", "s")], 20)


@check(LAB)
def one_token_is_computed(learner: Learner) -> None:
    """A hit never covers all tokens of a request."""
    for text in ("aa", "aabb", "aabbc"):
        expect(learner, [*served("a", text), start("b", text), start("c", "aabbc")], 9)


@check(LAB)
def all_or_nothing(learner: Learner) -> None:
    """allocate returns None and changes nothing if free blocks besides those of the hit are too few."""
    kept = served("a", "aabb")
    expect(learner, [*kept, start("b", "aabbccdde"), start("c", "aabbccd")], 5)
    expect(learner, [*kept, start("b", "aabbccddee"), start("c", "aabbc")], 5)
    running = [start("a", "aab"), ("publish", "a"), start("b", "aac"), ("end", "b")]
    expect(learner, [*running, start("c", "aad")], 4)
    expect(learner, [*kept, *served("b", "xxyy"), start("c", "aabb" + "z" * 7), start("d", "zz")], 5)
    expect(
        learner, [start("a", "aabbc"), ("grow", "a", 4), ("grow", "a", 3), ("grow", "a", 0), ("grow", "a", 1)]
    )


@check(LAB)
def a_hit_is_not_evicted(learner: Learner) -> None:
    """A block of the hit is never among the fresh blocks, and no owned block is: the last owner frees it."""
    kept = served("a", "aabb")
    expect(learner, [*kept, start("b", "aabbccdd")], 5)
    expect(learner, [*kept, *served("b", "xxyy"), start("c", "aabbccd")], 5)
    both = [*kept, start("b", "aabbc"), start("c", "aabbd"), ("end", "b")]
    expect(learner, [*both, ("grow", "c", 3), ("grow", "c", 2), start("d", "aabbc")], 6)


@check(LAB)
def a_hit_alone_gets_owners(learner: Learner) -> None:
    """`count` may be 0: each block of the hit gets an owner all the same."""
    cache = learner.new("PrefixCache", 6, 2)
    [block_hash] = cache.hashes([1, 2])
    [block] = cache.allocate([], 1)
    cache.publish(block, block_hash)
    cache.release([block])
    found, free = cache.allocate([block], 0), cache.get("num_free")
    if found != [] or free != 4:
        raise Failed(
            f"it returned {found!r}, and num_free is {free!r}; expected [] and 4 of 5 blocks",
            example=f"allocate([{block}], 0) for a hit that no request owns",
        )


@check(LAB)
def evicted_in_order(learner: Learner) -> None:
    """Blocks without a hash are taken first, then the end of the prefix that became free first."""
    kept = [*served("a", "aabbccd"), *served("b", "xxyy")]
    for count in range(1, 7):
        expect(learner, [*kept, start("c", "z" * 2 * count), start("d", "aabbccd"), start("e", "xxyyz")], 9)
    used_again = [*kept, *served("c", "aabbc"), start("d", "zzzzzzzzz"), start("e", "xxyyz")]
    expect(learner, used_again, 7)
    expect(learner, [*kept, start("p", "xxyyzzz"), ("end", "p"), start("d", "zzzzzzzz")], 7)


@check(LAB)
def one_block_per_hash(learner: Learner) -> None:
    """Only the first block with a hash is findable; the second one stays without."""
    twice = [start("a", "aab"), start("b", "aab"), ("publish", "a"), ("publish", "b")]
    for ends in (["a", "b"], ["b", "a"]):
        calls = [*twice, *[("end", name) for name in ends]]
        expect(learner, [*calls, start("c", "aab"), start("d", "zzzzz"), start("e", "aab")], 6)


@check(LAB)
def a_second_release_is_refused(learner: Learner) -> None:
    """Releasing a block without owners is a ValueError and changes nothing."""
    expect(learner, [start("a", "aab"), ("end", "a"), ("again", "a")])
    shared = [start("a", "aab"), ("publish", "a"), start("b", "aac"), ("end", "a"), ("again", "a")]
    expect(learner, [*shared, ("grow", "b", 4), ("end", "b")])


@check(LAB)
def random_requests(learner: Learner) -> None:
    """800 random calls agree with a model that stores texts and times; a failure is cut to its fewest calls."""
    for seed in range(16):
        rng = Random(seed)
        calls: list[Call] = []
        for _ in range(50):
            name = rng.choice("abcd")
            kind = rng.choices(["start", "publish", "grow", "end"], [6, 8, 1, 4])[0]
            if kind == "start":
                text = rng.choice(["aabbccdd", "aabbxxyy", "xxyyaabb"])[: rng.randint(1, 8)]
                calls.append(start(name, text + "z" * rng.randint(0, 2), rng.choice([None, None, None, "s"])))
            else:
                calls.append((kind, name, *([rng.randint(0, 2)] if kind == "grow" else [])))
        expect(learner, calls, 6 + seed, (1, 2, 2, 4)[seed % 4])


# -- the engine's KV manager


class LabHasher:
    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def extend(self, request: Request) -> None:
        request.block_hashes = list(
            self._cache.hashes(list(request.token_ids), request.cache_salt, request.lora_key)
        )


class LabPool(BlockPool):
    """The engine's pool with the learner's choices; its own record judges each answer."""

    def __init__(self, num_blocks: int, cache: Any) -> None:
        super().__init__(num_blocks)
        self._cache = cache
        self._hit: list[int] = []

    def touch(self, block: Block, request_id: str | None = None) -> None:
        super().touch(block, request_id)
        self._hit.append(block.block_id)

    def take(self, count: int, request_id: str | None = None) -> list[Block]:
        hit, self._hit = self._hit, []
        found = self._cache.allocate(hit, count)
        said = f"allocate({hit}, {count}) returned {found!r}"
        if not isinstance(found, list) or len(set(found)) != count:
            raise Failed(f"{said}; {len(self.free)} other blocks are free")
        for each in found:
            if (block := self.blocks[each]) not in self.free:
                raise Failed(f"{said}; block {each} is not free")
            self.free.remove(block)
            self.free.push_front(block)
            super().take(1, request_id)
        self._compare(said)
        return [self.blocks[each] for each in found]

    def release(self, blocks: Sequence[Block], request_id: str | None = None) -> None:
        super().release(blocks, request_id)
        self._cache.release([block.block_id for block in blocks])
        self._compare(f"{request_id} ended")

    def register(self, block: Block, block_hash: bytes, request_id: str | None = None) -> bool:
        registered = super().register(block, block_hash, request_id)
        if (found := self._cache.publish(block.block_id, block_hash)) is not registered:
            raise Failed(f"publish({block.block_id}, ...) returned {found!r}; expected {registered}")
        return registered

    def _compare(self, said: str) -> None:
        if (free := self._cache.get("num_free")) != len(self.free):
            raise Failed(f"{said}; num_free is {free!r}, and {len(self.free)} blocks are free")


class LabKV(KVManager):
    """The engine's KV manager on the learner's cache."""

    def __init__(self, config: CacheConfig, cache: Any, **options: Any) -> None:
        super().__init__(config, **options)
        self._cache = cache
        self.pool = LabPool(config.num_blocks, cache)
        self.hasher: Any = LabHasher(cache)

    def match(self, request: Request) -> PrefixHit:
        found = self._cache.match(list(request.block_hashes), request.num_tokens)
        return PrefixHit([self.pool.blocks[each] for each in found])


def behind_engine(learner: Learner, config: SchedulerConfig, cache: CacheConfig) -> Scheduler:
    """Return the engine's scheduler on the learner's cache."""
    part = learner.new("PrefixCache", cache.num_blocks, cache.block_size)
    return LabScheduler(config, cache, partial(LabKV, cache=part))


def service(asks: list[Ask], learner: Learner | None = None) -> Service:
    """Return the engine's scheduler, on its own cache or the learner's, and the requests."""
    num_blocks = 2 + max(-(-(ask.common + ask.own + ask.output) // 4) for ask in asks) + len(asks) // 3
    config, cache = SchedulerConfig(16, 3, 64), CacheConfig(num_blocks, 4, True)
    scheduler = Scheduler(config, cache) if learner is None else behind_engine(learner, config, cache)
    return scheduler, requests_of(asks)


@check(LAB)
def the_kv_manager_runs_on_it(learner: Learner) -> None:
    """The engine's scheduler and KV manager, with evictions and preemptions, find the same hits as on our cache."""
    rng = Random(23)
    for count in (1, 2, 2, 3, 4, 6, 9, 12):
        asks = [
            Ask(
                rng.randint(0, 1),
                rng.randint(4, 16),
                rng.randint(0, 6),
                rng.randint(1, 9),
                rng.choice([None, None, "s"]),
            )
            for _ in range(count)
        ]
        decide_the_same(LAB, asks, service, partial(service, learner=learner), "on our cache")
