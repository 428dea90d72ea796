"""Checks of the lab swap-tier: single rules, random calls, the engine's scheduler with offloading to the tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from common.sandbox import GuestError
from engine.config import CacheConfig, SchedulerConfig
from engine.config.cache import TierConfig
from engine.core.blocks import Block
from engine.core.host_tier import CopyPairs, HostTier
from engine.core.kv_manager import KVManager
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from lessons.course.checking import Failed, Learner, check, fewest
from lessons.labs.serving import decisions

LAB = "swap-tier"
Op = tuple[Any, ...]
"""("store", text), ("load", text, start), or ("end", number, ok): the copy `number` of those that run ends.

A text stands for a block and all before it: the prefix "abc" has the blocks "a", "ab" and "abc".
"""


class Ledger:
    """A second opinion: a row per block and a clock. It follows the learner's choice among empty blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.hashes: list[bytes | None] = [None] * num_blocks
        self.used = [0] * num_blocks
        self.copies: list[list[str]] = [[] for _ in range(num_blocks)]
        """Running copies by block: "write" or "read"."""
        self.clock = 0

    @property
    def num_free(self) -> int:
        return sum(not each for each in self.copies)

    def use(self, block: int) -> None:
        self.clock += 1
        self.used[block] = self.clock

    def match(self, hashes: list[bytes], start: int) -> list[int]:
        found: list[int] = []
        for at in range(start, len(hashes)):
            blocks = [each for each, known in enumerate(self.hashes) if known == hashes[at]]
            if not blocks or "write" in self.copies[blocks[0]]:
                break
            found += blocks
        return found

    def choices(self, block_hash: bytes) -> list[int]:
        """Return the blocks that `store` may return; none if it returns None."""
        free = [block for block, copies in enumerate(self.copies) if not copies]
        if block_hash in self.hashes or not free:
            return []
        empty = [block for block in free if self.hashes[block] is None]
        return empty or [min(free, key=self.used.__getitem__)]

    def store(self, block_hash: bytes, block: int | None = None) -> int | None:
        """Apply a store to the block that the learner chose, or to the first possible one."""
        if block_hash in self.hashes:
            self.use(self.hashes.index(block_hash))
        possible = self.choices(block_hash)
        if not possible:
            return None
        block = possible[0] if block is None else block
        self.hashes[block] = block_hash
        self.copies[block] = ["write"]
        self.use(block)
        return block

    def stored(self, block: int, ok: bool) -> None:
        self.copies[block].remove("write")
        if not ok:
            self.hashes[block] = None

    def load(self, blocks: Sequence[int]) -> None:
        for block in sorted(blocks, key=blocks.index, reverse=True):
            self.copies[block].append("read")
            self.use(block)

    def loaded(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.copies[block].remove("read")


def chain(text: str) -> list[bytes]:
    return [text[: end + 1].encode() for end in range(len(text))]


class Play:
    """Gives calls to the learner's tier and to the ledger, and compares what they answer."""

    def __init__(self, learner: Learner, num_blocks: int) -> None:
        self.yours, self.ledger = learner.new("HostTier", num_blocks), Ledger(num_blocks)
        self.said = [f"HostTier({num_blocks})"]
        self.running: list[tuple[str, Any]] = []
        """Copies that run: ("store", block) or ("load", blocks)."""

    def fail(self, why: str) -> Failed:
        return Failed(why, example="; ".join(self.said))

    def run(self, *ops: Op) -> Play:
        for op in ops:
            getattr(self, op[0])(*op[1:])
            if (free := self.yours.get("num_free")) != self.ledger.num_free:
                raise self.fail(
                    f"num_free is {free!r}; no copy reads or writes {self.ledger.num_free} blocks"
                )
        return self

    def store(self, text: str) -> None:
        self.said.append(f"store({text!r})")
        block, right = self.yours.store(text.encode()), self.ledger.choices(text.encode())
        if block not in (right or (None,)) or isinstance(block, bool):
            raise self.fail(
                f"{self.said[-1]} returned {block!r}; expected {' or '.join(map(str, right)) or None}"
            )
        self.ledger.store(text.encode(), block)
        if block is not None:
            self.said[-1] += f" -> {block}"
            self.running.append(("store", block))

    def find(self, text: str, start: int = 0) -> list[int]:
        self.said.append(f"match({'|'.join(text)!r}, {start})")
        found, right = self.yours.match(chain(text), start), self.ledger.match(chain(text), start)
        if not isinstance(found, list | tuple) or list(found) != right:
            raise self.fail(f"{self.said[-1]} returned {found!r}; by the rules it is {right}")
        return right

    def load(self, text: str, start: int = 0) -> None:
        if blocks := self.find(text, start):
            self.said.append(f"load({blocks})")
            self.yours.load(blocks)
            self.ledger.load(blocks)
            self.running.append(("load", blocks))

    def end(self, number: int = 0, ok: bool = True) -> None:
        if not self.running:
            return
        kind, blocks = self.running.pop(number % len(self.running))
        if kind == "load":
            self.said.append(f"loaded({blocks})")
            self.yours.loaded(blocks)
            self.ledger.loaded(blocks)
        else:
            self.said.append(f"stored({blocks}, {ok})")
            self.yours.stored(blocks, ok)
            self.ledger.stored(blocks, ok)

    def refuse(self, name: str, *args: Any) -> None:
        """Check that a call raises ValueError."""
        self.said.append(f"{name}{args if len(args) > 1 else f'({args[0]})'}")
        try:
            getattr(self.yours, name)(*args)
        except ValueError:
            return
        raise self.fail(f"{self.said[-1]} must raise ValueError")


def kept(text: str) -> list[Op]:
    """Return the calls that store the blocks of a prefix, the last one first, as a GPU evicts them."""
    return [op for end in range(len(text), 0, -1) for op in (("store", text[:end]), ("end", -1))]


# -- single rules


@check(LAB)
def found_when_the_copy_has_ended(learner: Learner) -> None:
    """A stored block is found when its copy has ended, and not before."""
    Play(learner, 3).run(("store", "a"), ("find", "a"), ("end",), ("find", "a"), ("find", "b"))
    Play(learner, 3).run(("store", "a"), ("store", "ab"), ("end", 1), ("find", "ab"), ("find", "ab", 1))


@check(LAB)
def the_host_continues_the_prefix(learner: Learner) -> None:
    """match begins behind the blocks that the GPU has, and ends at the first block that is not readable."""
    play = Play(learner, 8).run(*kept("abcde"), ("store", "abcdef"))
    play.run(*[("find", "abcdefg", start) for start in range(8)])
    play = Play(learner, 8).run(("store", "ab"), ("end",), ("store", "abcd"), ("end",))
    play.run(*[("find", "abcd", start) for start in range(5)])


@check(LAB)
def nothing_is_copied_twice(learner: Learner) -> None:
    """store returns None for a hash that a host block has, readable, being written or being read."""
    play = Play(learner, 4).run(("store", "a"), ("store", "a"), ("end",), ("store", "a"))
    play.run(("load", "a"), ("store", "a"), ("end",), ("store", "a"), ("store", "b"))


@check(LAB)
def empty_blocks_come_first(learner: Learner) -> None:
    """No content is lost while a block is empty."""
    Play(learner, 3).run(*kept("a"), *kept("b"), *kept("c"), ("find", "a"), ("find", "b"), ("find", "c"))


@check(LAB)
def the_least_recently_used_is_replaced(learner: Learner) -> None:
    """Without an empty block, store replaces the block whose last store or load is the oldest, and its hash is lost."""
    play = Play(learner, 3).run(*kept("a"), *kept("b"), *kept("c"), ("load", "a"), ("end",), *kept("d"))
    play.run(
        ("find", "a"), ("find", "b"), *kept("e"), ("find", "a"), ("find", "c"), *kept("f"), ("find", "a")
    )
    play = Play(learner, 2).run(
        *kept("a"), *kept("b"), ("store", "a"), *kept("c"), ("find", "a"), ("find", "b")
    )


@check(LAB)
def the_end_of_a_prefix_goes_first(learner: Learner) -> None:
    """Of the blocks of one load, the last one is replaced first."""
    play = Play(learner, 4).run(*kept("abc"), ("load", "abc"), ("end",), *kept("x"), *kept("y"))
    play.run(("find", "abc"), *kept("z"), ("find", "abc"))
    play = Play(learner, 3).run(
        ("store", "a"), ("store", "ab"), ("store", "abc"), ("end",), ("end",), ("end",)
    )
    play.run(("load", "abc"), ("end",), *kept("x"), ("find", "abc"), *kept("y"), ("find", "abc"))


@check(LAB)
def a_read_block_is_not_replaced(learner: Learner) -> None:
    """A block is protected until all loads of it have ended."""
    play = Play(learner, 2).run(*kept("ab"), ("load", "ab"), ("load", "a"), ("store", "x"), ("end",))
    play.run(("store", "y"), ("find", "ab"), ("store", "z"), ("end",), ("end",), ("store", "z"))
    play = Play(learner, 3).run(
        *kept("a"), *kept("b"), *kept("c"), ("load", "a"), *kept("d"), *kept("e"), *kept("f")
    )
    play.run(("end",), ("find", "a"), *kept("g"), ("find", "a"))


@check(LAB)
def a_written_block_is_not_replaced(learner: Learner) -> None:
    """A block is protected while it is being written; without any other block, store returns None."""
    play = Play(learner, 2).run(("store", "a"), ("store", "b"), ("store", "c"), ("end", 1), ("store", "d"))
    play.run(("store", "e"), ("end",), ("find", "a"), ("store", "e"), ("find", "a"))


@check(LAB)
def the_end_of_a_copy_is_no_use(learner: Learner) -> None:
    """The order of use is that in which stores and loads began: a copy that ends late is not more recent."""
    play = Play(learner, 3).run(
        ("store", "a"), ("store", "b"), ("store", "c"), ("end", 2), ("end", 1), ("end", 0)
    )
    play.run(*kept("d"), ("find", "a"), ("find", "b"), ("find", "c"))
    play = Play(learner, 3).run(*kept("a"), *kept("b"), *kept("c"), ("load", "a"), ("load", "b"), ("end", 1))
    play.run(("end", 0), *kept("d"), *kept("e"), ("find", "a"), ("find", "b"))


@check(LAB)
def a_failed_copy_leaves_nothing(learner: Learner) -> None:
    """After a copy that failed, its block is empty and its hash is not found."""
    play = Play(learner, 2).run(*kept("a"), ("store", "b"), ("end", 0, False), ("find", "b"), ("find", "a"))
    play.run(*kept("c"), ("find", "a"), ("find", "c"), ("store", "b"), ("end",), ("find", "b"))


@check(LAB)
def wrong_calls_are_refused(learner: Learner) -> None:
    """load, loaded and stored raise ValueError for a block in another state, and change nothing."""
    play = Play(learner, 3).run(*kept("ab"), ("store", "x"))
    (first, second), (_, written) = play.find("ab"), play.running[0]
    calls: list[Op] = [
        ("load", [first, written]),
        ("load", [second, 7]),
        ("loaded", [first]),
        ("loaded", [written]),
    ]
    for name, *args in [*calls, ("stored", first, True), ("stored", second, False), ("stored", 7, True)]:
        play.refuse(str(name), *args)
        play.run(("find", "ab"), ("find", "x"))
    play.run(("load", "a"))
    play.refuse("loaded", [first, second])
    play.run(("end", 1), ("end",), ("find", "x"), *kept("y"), ("find", "ab"))
    play.refuse("loaded", [first])


@check(LAB)
def random_calls(learner: Learner) -> None:
    """100 random sequences of stores, loads and ends agree with a table and a clock; a failure is cut to few calls."""
    rng = Random(5)
    for number in range(100):
        num_blocks = rng.choice([1, 2, 3, 5])
        ops: list[Op] = []
        for _ in range(4 + number // 3):
            text = "".join(rng.choice("ab") for _ in range(rng.randint(1, 4)))
            kinds: list[Op] = [("store", text), ("load", text, rng.randint(0, 2)), ("end", rng.randint(0, 3))]
            ops.append(rng.choice([*kinds, *kinds, ("end", rng.randint(0, 3), False), ("find", text)]))

        def fails(some: Sequence[Op], num_blocks: int = num_blocks) -> bool:
            try:
                Play(learner, num_blocks).run(*some)
            except (Failed, GuestError):
                return True
            return False

        if fails(ops):
            Play(learner, num_blocks).run(*fewest(ops, fails, 80))
            raise Failed("two runs of the same calls differ", example=ops)


# -- the engine's scheduler


class LabTier(HostTier):
    """The engine's host tier, led by the learner's class. It keeps what each host block holds, to judge copies."""

    def __init__(self, num_blocks: int, lab: Any) -> None:
        super().__init__(num_blocks)
        self.lab = lab
        self.blocks = [Block(number) for number in range(num_blocks)]
        self.content: list[bytes | None] = [None] * num_blocks
        self.now: list[tuple[str, Any]] = []
        """Copies of the step being planned: ("write", (block, hash)) or ("read", blocks)."""
        self.steps: dict[int, list[tuple[str, Any]]] = {}
        self.pairs: tuple[CopyPairs, CopyPairs] = ([], [])

    def find(self, hashes: list[bytes], start: int) -> list[Block]:
        found = list(self.lab.match(hashes, start))
        for at, number in enumerate(found, start):
            if number not in range(len(self.blocks)) or self.content[number] != hashes[at]:
                raise Failed(
                    f"match says that host block {number!r} holds block {at} of a prompt, and it does not"
                )
        return [self.blocks[number] for number in found]

    def busy(self) -> set[int]:
        copies = [copy for step in (self.now, *self.steps.values()) for copy in step]
        return {number for kind, what in copies for number in ([what[0]] if kind == "write" else what)}

    def offload(self, block: Block) -> bool:
        number = self.lab.store(block.block_hash)
        if number is None:
            return False
        if number not in range(len(self.blocks)) or number in self.busy():
            raise Failed(
                f"store returned host block {number!r}, which a copy reads or writes, or which is none"
            )
        self.content[number] = None
        self.now.append(("write", (number, block.block_hash)))
        self.pairs[0].append((block.block_id, number))
        return True

    def hold(self, hit: Sequence[Block]) -> None:
        if hit:
            numbers = [block.block_id for block in hit]
            self.lab.load(numbers)
            self.now.append(("read", numbers))

    def copy_in(self, hit: Sequence[Block], blocks: Iterable[Block]) -> None:
        self.pairs[1].extend((one.block_id, other.block_id) for one, other in zip(hit, blocks, strict=True))

    @property
    def num_offloaded(self) -> int:
        return len(self.pairs[0])

    def close_step(self, step: int) -> tuple[CopyPairs, CopyPairs]:
        pairs, self.pairs = self.pairs, ([], [])
        self.steps[step], self.now = self.now, []
        return pairs

    def end_step(self, step: int) -> None:
        for kind, what in self.steps.pop(step):
            if kind == "read":
                self.lab.loaded(what)
            else:
                number, block_hash = what
                self.content[number] = block_hash
                self.lab.stored(number, True)

    def check_integrity(self, owned: Iterable[Block]) -> list[str]:
        return []


class LabKV(KVManager):
    """The engine's KV manager, which offloads to the learner's tier."""

    def __init__(self, config: CacheConfig, lab: Any, **options: Any) -> None:
        super().__init__(config, **options)
        self.host = LabTier(config.tiers.num_host_blocks, lab)
        self.pool.before_eviction = self.host.offload

    def _match_host(self, request: Request, host: HostTier, start: int) -> list[Block]:
        assert isinstance(host, LabTier)
        return host.find(request.block_hashes[: self._max_hit(request)], start)


class LabScheduler(Scheduler):
    def __init__(self, config: SchedulerConfig, cache_config: CacheConfig, lab: Any) -> None:
        self.kv_class: Any = partial(LabKV, lab=lab)
        super().__init__(config, cache_config)


class Ask(NamedTuple):
    """A request: the text that it starts with, tokens of its own, and its output."""

    text: int
    common: int
    own: int
    output: int


def serve(asks: Sequence[Ask], host_blocks: int, lab: Any) -> list[str]:
    """Serve requests with the engine's scheduler and a host tier; return a line for each step."""
    largest = max(-(-(ask.common + ask.own + ask.output) // 4) for ask in asks)
    tiers = TierConfig(host_blocks, offload=True, block_bytes=1)
    scheduler = LabScheduler(SchedulerConfig(24, 3, 64), CacheConfig(largest + 3, 4, tiers=tiers), lab)
    requests = []
    for at, ask in enumerate(asks):
        params = SamplingParams(temperature=0, max_tokens=ask.output, ignore_eos=True)
        tokens = [100 * ask.text + place for place in range(ask.common)] + [1000 + at] * ask.own
        requests.append(Request(f"r{at}", tokens, params))
    return decisions(scheduler, requests)


@check(LAB)
def the_engine_offloads_to_it(learner: Learner) -> None:
    """The engine's KV manager keeps evicted blocks in it: copies are right, and hits are those of the rules."""

    def difference(asks: Sequence[Ask], host_blocks: int) -> str | None:
        try:
            yours = serve(asks, host_blocks, learner.new("HostTier", host_blocks))
        except (Failed, LookupError, ValueError, TypeError) as error:
            return str(error)
        ours = serve(asks, host_blocks, Ledger(host_blocks))
        for step, (mine, theirs) in enumerate(zip(ours, yours, strict=False)):
            if mine != theirs:
                return f"step {step} is {theirs}; by the rules it is {mine}"
        return None if len(ours) == len(yours) else f"it takes {len(yours)} steps, by the rules {len(ours)}"

    rng = Random(29)
    for count in (2, 3, 4, 6, 10, 20, 30, 40):
        host_blocks = rng.choice([6, 9, 14])
        asks = [
            Ask(rng.randint(0, 3), rng.choice([8, 13, 20, 20]), rng.randint(1, 3), rng.randint(1, 4))
            for _ in range(count)
        ]
        if difference(asks, host_blocks) is not None:

            def fails(some: Sequence[Ask], host_blocks: int = host_blocks) -> bool:
                return bool(some) and difference(some, host_blocks) is not None

            asks = fewest(asks, fails, 30)
            shown = ", ".join(f"text {ask.text}: {ask.common} + {ask.own} + {ask.output}" for ask in asks)
            raise Failed(
                difference(asks, host_blocks) or "two runs of the same requests differ",
                example=f"{host_blocks} host blocks; tokens of a text + own + output: {shown}",
            )
