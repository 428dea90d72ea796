"""Checks of lesson 11: chained hashes, the cache with its eviction, and hits counted in advance."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from lessons.course.checking import Failed, Learner, check, smallest
from quizzes.experiments.context import Context
from quizzes.experiments.core_engine import Ask

Prompts = list[list[int]]


def hashes(learner: Learner, tokens: list[int], block_size: int, salt: bytes = b"") -> list[bytes]:
    """Return the learner's hashes after a look at their form."""
    found = learner.call("block_hashes", tokens, block_size, salt)
    if not isinstance(found, list) or any(type(each) is not bytes or len(each) != 32 for each in found):
        raise Failed(
            f"the result is {found!r}; expected a list of 32-byte digests"[:300], example=tokens[:20]
        )
    return found


@check("11.1")
def only_full_blocks_have_a_hash(learner: Learner) -> None:
    """One hash per full block; a partial block at the end has none."""

    def run(case: tuple[int, int]) -> None:
        length, block_size = case
        found = hashes(learner, list(range(length)), block_size)
        if len(found) != length // block_size:
            raise Failed(f"{length} tokens in blocks of {block_size} gave {len(found)} hashes")

    smallest([(0, 4), (3, 4), (4, 4), (5, 4), (8, 4), (11, 4), (5, 1), (33, 16)], run)


@check("11.1")
def a_hash_covers_all_tokens_before(learner: Learner) -> None:
    """A change of one token changes its block's hash and all later ones, and no earlier one."""
    tokens = list(range(100, 132))
    before = hashes(learner, tokens, 4)

    def run(at: int) -> None:
        after = hashes(learner, [*tokens[:at], 7, *tokens[at + 1 :]], 4)
        same = [a == b for a, b in zip(before, after, strict=True)]
        wanted = [index < at // 4 for index in range(8)]
        if same != wanted:
            raise Failed(
                f"token {at} changed; blocks with an equal hash: {same}", example=f"expected {wanted}"
            )

    smallest([0, 3, 4, 13, 31], run)


@check("11.1")
def equal_prefixes_have_equal_hashes(learner: Learner) -> None:
    """Two prompts share the hashes of the blocks that both start with, whatever follows."""
    rng = Random(111)

    def run(shared: int) -> None:
        start = [rng.randrange(50_000) for _ in range(shared)]
        one, two = (start + [base + index for index in range(9)] for base in (60_000, 70_000))
        found = hashes(learner, one, 4), hashes(learner, two, 4)
        num_equal = sum(a == b for a, b in zip(*found, strict=True))
        if num_equal != shared // 4:
            raise Failed(f"{shared} common tokens: {num_equal} equal hashes, not {shared // 4}")

    smallest([0, 3, 4, 6, 8, 16], run)


@check("11.1")
def equal_blocks_differ_by_place(learner: Learner) -> None:
    """The same tokens after other tokens have another hash: their KV differs."""
    found = hashes(learner, [5, 6] * 4, 2)
    if len(set(found)) != 4:
        raise Failed(
            f"four equal blocks in a row have {len(set(found))} different hashes", example="[5, 6] * 4"
        )
    if hashes(learner, [1, 2, 3, 4], 2)[1] == hashes(learner, [3, 4], 2)[0]:
        raise Failed(
            "block [3, 4] has the same hash behind [1, 2] and at the start", example="[1, 2, 3, 4], [3, 4]"
        )


@check("11.1")
def different_tokens_never_collide(learner: Learner) -> None:
    """The encoding is unambiguous: no two different blocks have one hash."""
    blocks = [[1, 23], [12, 3], [1, 2], [2, 1], [0, 0], [0, 1], [256, 0], [0, 256], [1, 256], [65_536, 1]]
    blocks += [[2**32, 5], [0, 5], [2**40 + 1, 5], [1, 5], [151_643, 1], [15_164, 31]]
    known: dict[bytes, list[int]] = {}
    for block in blocks:
        [found] = hashes(learner, block, 2)
        if found in known:
            raise Failed(f"{known[found]} and {block} have the same hash", example=(known[found], block))
        known[found] = block


@check("11.1")
def a_salt_separates(learner: Learner) -> None:
    """Prompts with different salts share no hash; with equal salts they share all."""
    tokens = list(range(12))
    salts = [b"", b"a", b"b", b"ab", b"tenant-1", b"tenant-11"]
    by_salt = {salt: hashes(learner, tokens, 4, salt) for salt in salts}
    for salt, found in by_salt.items():
        if found != hashes(learner, tokens, 4, salt):
            raise Failed("the same salt gave other hashes in a second call", example=salt)
        for other, theirs in by_salt.items():
            if salt != other and set(found) & set(theirs):
                raise Failed(
                    f"salts {salt!r} and {other!r} share a hash", example="tokens 0..11, blocks of 4"
                )


@check("11.1")
def a_salt_cannot_continue_a_chain(learner: Learner) -> None:
    """No salt lets a tenant enter a chain: a hash used as a salt does not continue the prompt it belongs to."""
    tokens = list(range(8))
    chain = hashes(learner, tokens, 4)
    if hashes(learner, tokens[4:], 4, chain[0])[0] == chain[1]:
        raise Failed("with hash 0 as salt, block 1 alone has the hash that it has behind block 0")


class OracleCache:
    """Blocks in a list, the next to be evicted first. Slow and plain."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, int]] = []
        self.evictable: list[int] = []

    def match(self, wanted: list[bytes]) -> list[int]:
        known = dict(self.entries)
        length = next((at for at, each in enumerate(wanted) if each not in known), len(wanted))
        return [known[each] for each in wanted[:length]]

    def insert(self, block_hash: bytes, block: int) -> bool:
        if any(each == block_hash for each, _ in self.entries):
            return False
        self.entries.append((block_hash, block))
        return True

    def touch(self, block: int) -> None:
        self.evictable = [each for each in self.evictable if each != block]

    def release(self, block: int) -> None:
        self.touch(block)
        if any(each == block for _, each in self.entries):
            self.evictable.append(block)

    def evict(self) -> int | None:
        if not self.evictable:
            return None
        block = self.evictable.pop(0)
        self.entries = [entry for entry in self.entries if entry[1] != block]
        return block

    def size(self) -> int:
        return len(self.entries)


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def size(cache: Any) -> int:
    return int(cache.__len__())


@check("11.2")
def the_longest_known_prefix_matches(learner: Learner) -> None:
    """match stops at the first unknown hash, although later ones may be known."""
    cache = learner.new("PrefixCache")
    for number, block in ((1, 70), (2, 40), (4, 10)):
        cache.insert(digest(number), block)
    for wanted, blocks in (([], []), ([1], [70]), ([1, 2, 3, 4], [70, 40]), ([9, 1], []), ([4], [10])):
        found = cache.match([digest(number) for number in wanted])
        if list(found) != blocks:
            raise Failed(
                f"hashes 1, 2, 4 are known; match({wanted}) is {found}, not {blocks}", example=wanted
            )


@check("11.2")
def the_first_block_stays(learner: Learner) -> None:
    """insert returns False for a known hash, and match keeps returning the first block."""
    cache = learner.new("PrefixCache")
    answers = [cache.insert(digest(1), 5), cache.insert(digest(1), 6), cache.insert(digest(2), 6)]
    if answers != [True, False, True]:
        raise Failed(f"insert(h1, 5), insert(h1, 6), insert(h2, 6) returned {answers}")
    if list(cache.match([digest(1), digest(2)])) != [5, 6]:
        raise Failed(f"match([h1, h2]) is {cache.match([digest(1), digest(2)])}, not [5, 6]")
    if size(cache) != 2:
        raise Failed(f"two blocks are held; len is {size(cache)}")


@check("11.2")
def an_owned_block_is_not_evicted(learner: Learner) -> None:
    """A block is evictable only after release, and no longer after touch."""
    cache = learner.new("PrefixCache")
    cache.insert(digest(1), 5)
    cache.insert(digest(2), 6)
    if (found := cache.evict()) is not None:
        raise Failed(
            f"insert does not make a block evictable; evict() returned {found}", example="insert, evict"
        )
    cache.release(5)
    cache.release(6)
    cache.touch(5)
    found = [cache.evict(), cache.evict()]
    if found != [6, None]:
        raise Failed(f"released 5 and 6, touched 5; two evictions returned {found}, not [6, None]")


@check("11.2")
def least_recently_released_goes_first(learner: Learner) -> None:
    """Evictions follow the order of the last release; a release after a touch counts anew."""
    cache = learner.new("PrefixCache")
    for block in (1, 2, 3):
        cache.insert(digest(block), block)
    for block in (2, 1, 3):
        cache.release(block)
    cache.match([digest(2)])  # looking changes nothing
    cache.touch(1)
    cache.release(1)
    found = [cache.evict() for _ in range(4)]
    if found != [2, 3, 1, None]:
        raise Failed(
            f"released 2, 1, 3, then touched and released 1; evictions: {found}, expected [2, 3, 1, None]"
        )


@check("11.2")
def an_evicted_block_is_forgotten(learner: Learner) -> None:
    """After an eviction the hash is unknown, the block is not held, and both can come back."""
    cache = learner.new("PrefixCache")
    cache.insert(digest(1), 5)
    cache.release(5)
    cache.evict()
    if list(cache.match([digest(1)])) or size(cache):
        raise Failed(f"evicted block 5; match returns {cache.match([digest(1)])}, len {size(cache)}")
    cache.release(5)
    if (found := cache.evict()) is not None:
        raise Failed(f"release of a block that is not held made it evictable: evict() returned {found}")
    if cache.insert(digest(1), 8) is not True or list(cache.match([digest(1)])) != [8]:
        raise Failed("after the eviction, insert(h1, 8) must succeed, and match must return [8]")


@check("11.2")
def any_sequence_equals_the_oracle(learner: Learner) -> None:
    """Over 60 random sequences of operations every result equals that of a slow, plain cache."""

    def run(case: int) -> None:
        rng, cache, oracle = Random(case), learner.new("PrefixCache"), OracleCache()
        log: list[str] = []
        for _ in range(4 + case // 2):
            number, block = rng.randrange(5), rng.randrange(6)
            held = [each for _, each in oracle.entries]
            actions = ["match", "evict", *["release", "touch"] * (len(held) > 0)]
            actions += ["insert"] * 2 * (block not in held)
            action = rng.choice(actions)
            if action in ("release", "touch"):
                block = rng.choice(held)
            arguments: tuple[Any, ...] = {
                "match": ([digest(each) for each in range(number)],),
                "insert": (digest(number), block),
                "evict": (),
            }.get(action, (block,))
            shown = "h0..." if action == "match" else f"h{number}, {block}" if action == "insert" else block
            log.append(f"{action}({shown if arguments else ''})")
            found, wanted = getattr(cache, action)(*arguments), getattr(oracle, action)(*arguments)
            found = list(found) if action == "match" else found
            if found != wanted or size(cache) != oracle.size():
                what = f"{found!r}, len {size(cache)}; expected {wanted!r}, len {oracle.size()}"
                raise Failed(f"the last call returned {what}", example="; ".join(log))

    smallest(range(60), run)


@check("11.2")
def hits_equal_the_engines(learner: Learner) -> None:
    """On 100 random workloads with a small pool, hits and evictions equal those of the engine's prefix cache."""

    def run(case: int) -> None:
        rng = Random(1000 + case)
        prompts, pool = draw_prompts(rng, 3 + case // 20), rng.randint(8, 12)
        wanted = engine_hits(prompts, 4, pool)
        found = serve(learner.new("PrefixCache"), prompts, pool)
        if found != wanted:
            raise Failed(
                f"hit tokens {found}; the engine: {wanted}", example=f"{pool} blocks, prompts {prompts}"
            )

    smallest(range(100), run)


def draw_prompts(rng: Random, count: int) -> Prompts:
    """Return prompts that share prefixes with each other."""
    prompts: Prompts = []
    for index in range(count):
        earlier = rng.choice(prompts) if prompts and rng.random() < 0.8 else []
        start = earlier[: rng.randint(0, len(earlier))]
        prompts.append(
            start + [100 * (index + 1) + each for each in range(rng.randint(1, max(1, 26 - len(start))))]
        )
    return prompts


def engine_hits(prompts: Prompts, block_size: int, pool: int) -> list[int]:
    """Run the prompts one after another on the engine's scheduler; return the hit of each."""
    engine = Context().core(block_size=block_size, num_blocks=pool)
    for index, prompt in enumerate(prompts):
        engine.run([Ask(f"p{index}", prompt, 1)])
    return [engine.outcomes[f"p{index}"].cached_tokens for index in range(len(prompts))]


def serve(cache: Any, prompts: Prompts, pool: int) -> list[int]:
    """Serve prompts one after another with the cache, as the engine does: share, take blocks, publish, release."""
    free, hits = list(range(pool)), []
    for prompt in prompts:
        chain = [digest(hash(tuple(prompt[:end])) % 2**200) for end in range(4, len(prompt) + 1, 4)]
        shared = list(cache.match(chain[: (len(prompt) - 1) // 4]))
        for block in shared:
            cache.touch(block)
        fresh = []
        for _ in range(-(-len(prompt) // 4) - len(shared)):
            block = free.pop(0) if free else cache.evict()
            if block is None:
                raise Failed("evict() returned None although released blocks are held")
            fresh.append(block)
        table = shared + fresh
        new = chain[len(shared) :]
        is_held = [cache.insert(*pair) for pair in zip(new, table[len(shared) :], strict=False)]
        is_held = [True] * len(shared) + is_held + [False] * (len(table) - len(chain))
        for block, held in reversed(list(zip(table, is_held, strict=True))):
            if held:
                cache.release(block)
            else:
                free.insert(0, block)
        hits.append(4 * len(shared))
    return hits


def count_hits(prompts: Prompts, block_size: int) -> list[int]:
    """Compare every prompt with every earlier one, token by token."""
    found = []
    for index, prompt in enumerate(prompts):
        longest = 0
        for other in prompts[:index]:
            common = 0
            while common < min(len(prompt), len(other)) and prompt[common] == other[common]:
                common += 1
            longest = max(longest, min(common, len(prompt) - 1) // block_size)
        found.append(longest * block_size)
    return found


def compare_hits(learner: Learner, cases: list[tuple[Prompts, int]] | Iterator[tuple[Prompts, int]]) -> None:
    def run(case: tuple[Prompts, int]) -> None:
        found, wanted = learner.call("hit_tokens", *case), count_hits(*case)
        if found != wanted:
            raise Failed(
                f"hit tokens {found}; expected {wanted}", example=f"prompts {case[0]}, block_size {case[1]}"
            )

    smallest(cases, run)


@check("11.3")
def the_first_prompt_is_cold(learner: Learner) -> None:
    """The first prompt has no hits, and one that shares nothing has none either."""
    compare_hits(learner, [([[1, 2, 3]], 2), ([[1, 2, 3], [4, 5, 6]], 2), ([], 2)])


@check("11.3")
def hits_are_full_blocks(learner: Learner) -> None:
    """A common prefix counts in full blocks; the block in which two prompts part is lost."""
    start = list(range(10, 22))
    for shared in (1, 3, 4, 7, 8, 11):
        compare_hits(learner, [([start, [*start[:shared], *range(90, 99)]], 4)])


@check("11.3")
def one_token_is_always_computed(learner: Learner) -> None:
    """The whole prompt is never a hit: a repeated prompt of full blocks computes its last block."""
    compare_hits(
        learner,
        [([[1, 2], [1, 2]], 2), ([[1, 2, 3, 4]] * 3, 2), ([[1, 2, 3, 4], [1, 2]], 2), ([[1], [1]], 1)],
    )
    compare_hits(
        learner, [([[1, 2], [1, 2, 3]], 2)]
    )  # the last block of the first prompt is shared all the same


@check("11.3")
def the_longest_earlier_prefix_counts(learner: Learner) -> None:
    """Any earlier prompt may supply the prefix, not only the one before, and equal blocks elsewhere do not count."""
    first, second = list(range(12)), [*range(4), *range(50, 58)]
    compare_hits(learner, [([first, [99] * 12, first], 4), ([first, second, [*first[:8], 77]], 4)])
    compare_hits(learner, [([first, first[4:], second[4:] + first], 4)])


@check("11.3")
def hits_of_100_workloads(learner: Learner) -> None:
    """On 100 random workloads the hits equal those counted token by token."""
    drawn = ((draw_prompts(Random(2000 + case), 2 + case // 12), 1 + case % 5) for case in range(100))
    compare_hits(learner, drawn)


@check("11.3")
def a_large_engine_hits_the_same(learner: Learner) -> None:
    """The engine, with a pool that never evicts, reports the same hits."""

    def run(case: int) -> None:
        prompts = draw_prompts(Random(3000 + case), 4 + case)
        found, wanted = learner.call("hit_tokens", prompts, 4), engine_hits(prompts, 4, 600)
        if found != wanted:
            raise Failed(f"hit tokens {found}; the engine: {wanted}", example=f"prompts {prompts}")

    smallest(range(20), run)
