"""Requirements on a prefix cache. PrefixCache(num_blocks, block_size, compute); get_or_compute(token_ids) -> (kv, hit).

compute(token_ids, start) returns one KV entry per token from position `start` on. kv is the list of all entries of the
prompt; hit says how many of them came from the cache.
"""

from typing import Any

from prep_common.sandbox import callback
from quizzes.autopsies.programs import Program

BLOCK_SIZE = 4


def _cache(program: Program, num_blocks: int = 100, block_size: int = BLOCK_SIZE) -> tuple[Any, list[int]]:
    """A cache, and the list of how many tokens each call computed. An entry depends on every token up to it."""
    computed: list[int] = []

    def compute(token_ids: list[int], start: int) -> list[Any]:
        computed.append(len(token_ids) - start)
        return [tuple(token_ids[: i + 1]) for i in range(start, len(token_ids))]

    return program.PrefixCache(num_blocks, block_size, callback(compute)), computed


def _drawn(program: Program, num_blocks: int) -> tuple[int, Any, list[int]]:
    """A drawn block size, a cache with such blocks, and how many tokens each call computed."""
    size = program.rng.choice([1, 2, 3, 5])
    return size, *_cache(program, num_blocks, size)


def _right(token_ids: list[int]) -> list[Any]:
    return [tuple(token_ids[: i + 1]) for i in range(len(token_ids))]


def check_a_list_of_tokens_is_a_prompt(program: Program) -> None:
    """get_or_compute takes a list of token ids and returns one KV entry per token."""
    cache, _ = _cache(program)
    kv, hit = cache.get_or_compute([3, 1, 4, 1, 5])
    assert list(kv) == _right([3, 1, 4, 1, 5]) and hit == 0, f"{len(kv)} entries, hit {hit}"


def check_a_shared_start_is_found(program: Program) -> None:
    """Full blocks that two prompts share are computed once, although the prompts differ behind them."""
    cache, computed = _cache(program)
    cache.get_or_compute([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    kv, hit = cache.get_or_compute([1, 2, 3, 4, 5, 6, 7, 8, 99, 98])
    assert hit == 8, f"hit {hit} of 8 shared tokens"
    assert computed == [10, 2], f"computed {computed}, wanted 10 and then 2"
    assert list(kv) == _right([1, 2, 3, 4, 5, 6, 7, 8, 99, 98]), "the KV is not that of this prompt"


def check_only_full_blocks_are_shared(program: Program) -> None:
    """No lookup finds a block that is not full: its KV may still be extended."""
    cache, _ = _cache(program)
    cache.get_or_compute([1, 2, 3, 4, 5, 6])
    _, hit = cache.get_or_compute([1, 2, 3, 4, 5, 6, 7])
    assert hit == 4, f"hit {hit}, wanted the 4 tokens of the one full block"


def check_the_last_token_is_computed(program: Program) -> None:
    """A prompt that is cached to its end still computes its last block: its logits are needed."""
    cache, computed = _cache(program)
    cache.get_or_compute([1, 2, 3, 4, 5, 6, 7, 8])
    _, hit = cache.get_or_compute([1, 2, 3, 4, 5, 6, 7, 8])
    assert hit == 4 and computed[-1] == 4, f"hit {hit}, computed {computed[-1]}; wanted 4 and 4"


def check_the_same_tokens_behind_another_start_are_another_block(program: Program) -> None:
    """A block is found by everything up to its end, not by its own tokens: KV depends on what stands before."""
    cache, _ = _cache(program)
    cache.get_or_compute([1, 1, 1, 1, 7, 7, 7, 7, 0])
    cache.get_or_compute([2, 2, 2, 2, 0])
    kv, hit = cache.get_or_compute([2, 2, 2, 2, 7, 7, 7, 7, 0])
    assert hit == 4 and list(kv) == _right([2, 2, 2, 2, 7, 7, 7, 7, 0]), f"hit {hit}: KV of another context"


def check_different_tokens_never_collide(program: Program) -> None:
    """Python's hash(-1) equals hash(-2): prefixes that only hash alike get KV of their own."""
    cache, _ = _cache(program)
    cache.get_or_compute([5, 5, 5, -1, 0])
    kv, hit = cache.get_or_compute([5, 5, 5, -2, 0])
    assert hit == 0 and list(kv) == _right([5, 5, 5, -2, 0]), "one prompt got the KV of another"


def check_it_never_holds_more_than_its_blocks(program: Program) -> None:
    """At most num_blocks blocks are kept (len(cache)); the least recently used go first."""
    cache, _ = _cache(program, 3)
    for start in (10, 20, 30):
        cache.get_or_compute([start, 1, 1, 1, 0])
    cache.get_or_compute([10, 1, 1, 1, 0])
    cache.get_or_compute([40, 1, 1, 1, 0])
    assert len(cache) == 3, f"{len(cache)} blocks kept, 3 allowed"
    hits = {start: cache.get_or_compute([start, 1, 1, 1, 0])[1] for start in (40, 30, 10)}
    assert hits == {40: 4, 30: 4, 10: 4}, f"kept {hits}: 20 was used least recently and had to go"


def check_a_chain_loses_its_tail_first(program: Program) -> None:
    """The last block of a prompt is evicted before the first: without its start a block can never be found."""
    cache, _ = _cache(program, 3)
    cache.get_or_compute([1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 0])
    cache.get_or_compute([9, 9, 9, 9, 0])
    _, hit = cache.get_or_compute([1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 0])
    assert hit == 8, f"hit {hit}, wanted the first 8 tokens"


def check_hits_are_counted(program: Program) -> None:
    """cache.queries and cache.hits count tokens."""
    cache, _ = _cache(program)
    cache.get_or_compute([1, 2, 3, 4, 5])
    cache.get_or_compute([1, 2, 3, 4, 6])
    counted = f"queries {cache.queries}, hits {cache.hits}"
    assert (cache.queries, cache.hits) == (10, 4), f"{counted}; wanted 10 and 4"


def check_random_prompts_always_get_their_own_kv(program: Program) -> None:
    """Over random prompts with shared starts and little room, every KV entry is that of its own prompt."""
    rng = program.rng
    num_blocks = rng.randint(5, 9)
    size, cache, computed = _drawn(program, num_blocks)
    for _ in range(250):
        prompt = [rng.randint(0, 1) for _ in range(rng.randint(1, 15))]
        kv, hit = cache.get_or_compute(list(prompt))
        assert list(kv) == _right(prompt), f"{prompt} got the KV of another prompt"
        assert hit + computed[-1] == len(prompt), f"hit {hit} and computed {computed[-1]} of {len(prompt)}"
        assert hit % size == 0, f"hit {hit} of a cache with blocks of {size}"
        assert len(cache) <= num_blocks, f"{len(cache)} blocks of {num_blocks}"


def check_with_room_for_all_every_shared_block_is_found(program: Program) -> None:
    """A cache with room for all blocks of all prompts finds each full block that an earlier prompt had."""
    rng = program.rng
    size, cache, _ = _drawn(program, rng.randint(1500, 2500))
    known: set[tuple[int, ...]] = set()
    prompt: list[int] = []
    queries = hits = 0
    for _ in range(60):
        prompt = prompt[: rng.randint(0, 30)] + [rng.randint(0, 1) for _ in range(rng.randint(1, 15))]
        ends = [end for end in range(size, len(prompt), size) if tuple(prompt[:end]) in known]
        _, hit = cache.get_or_compute(list(prompt))
        wanted = max(ends, default=0)
        assert hit == wanted, f"hit {hit}, wanted {wanted} of {len(prompt)} tokens in blocks of {size}"
        known |= {tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)}
        queries, hits = queries + len(prompt), hits + hit
    counted = f"queries {cache.queries}, hits {cache.hits}"
    assert (cache.queries, cache.hits) == (queries, hits), f"{counted}; wanted {queries} and {hits}"
