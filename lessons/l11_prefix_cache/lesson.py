# %% [markdown] name="why"
# # Lesson 11: prefix caching
#
# ## Why an interviewer asks
#
# Chats send their whole history with every turn, agents their tools with every call. Most prompt tokens of such
# services have been computed before. An engine that notices skips them. The questions:
#
# * What is the key? Why is a hash of the block's tokens wrong?
# * What is evicted first, and why from the end of a conversation?
# * "Our hit rate fell from 80 % to 0 after a harmless change of the prompt." What was the change?
# * Who can see whose cache?
#
# You write the hashes, the cache, and an estimate of the hits that your logs would have had.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("11")

# %% [markdown] name="predict"
# ## Predict
#
# Blocks have 16 tokens. Six users chat. All chats begin with the same system prompt of 320 tokens. A turn adds a
# question of 40 tokens to the history; the answer has 60. Each user asks five times, and memory is plentiful.

# %% name="predict-repeat"
this.predict(
    "repeat",
    ...,
    question="A prompt of 64 tokens is sent twice, one after the other. How many tokens of the second one are hits?",
    unit="tokens",
)

# %% name="predict-chat"
this.predict(
    "chat",
    ...,
    question="Which percentage of all prompt tokens of these six chats are hits?",
    unit="%",
)

# %% name="predict-timestamp"
this.predict(
    "timestamp",
    ...,
    question="A developer puts the current time (8 tokens, new in each request) at the head of the system prompt. "
    "Which percentage now?",
    unit="%",
)

# %% [markdown] name="first-piece"
# ## First piece: the keys
#
# **11.1** A token's keys and values depend on every token before it, so a block's identity is its tokens
# *and everything before*. A chain of hashes expresses it in 32 bytes: digest of (digest of the block before, tokens).
# The start of the chain holds what else shapes or separates KV: in the engine model, KV type, adapter and
# `cache_salt`; here the salt.


# %% name="11.1" tags=["exercise"]
# exercise 11.1
def block_hashes(token_ids: list[int], block_size: int, salt: bytes = b"") -> list[bytes]:
    """Return one sha256 digest (32 bytes) per full block; each covers its block and everything before it.

    salt: requests with different salts share no hash, whatever salt a tenant chooses. Tokens are 0 to 2**63 - 1.
    """
    raise NotImplementedError("11.1: chain the digests of full blocks, starting with the salt")


# %% name="check-11.1"
this.check("11.1")

# %% [markdown] name="run"
# ## Run it
#
# Three workloads as lists of (prompt, answer). Token ids are arbitrary; only equality matters. `Fresh()(n)` returns
# n ids that are new. The stamp goes where a template would put it: in front of everything.

# %% name="workloads"
from quizzes.experiments.core_engine import Ask, Fresh


def chat(users=6, turns=5, system=320, question=40, answer=60, stamped=False, at=0):
    """Return requests of interleaved chats; a stamp of 8 tokens stands `at` tokens behind the start."""
    fresh = Fresh()
    history = [list(tokens) for tokens in [fresh(system)] * users]
    requests = []
    for _ in range(turns):
        for own in history:
            own += fresh(question)
            prompt = own[:at] + (fresh(8) if stamped else []) + own[at:]
            requests.append((prompt, fresh(answer)))
            own += requests[-1][1]
    return requests


def agent(runs=3, calls=8, stamped=False):
    """Return requests of agents that run at the same time: long instructions, many short calls."""
    return chat(users=runs, turns=calls, system=1200, question=120, answer=40, stamped=stamped)


def unrelated(requests=30, stamped=False):
    """Return prompts that share nothing."""
    return chat(users=requests, turns=1, system=0, question=500, stamped=stamped)


# %% name="serve-engine"
from quizzes.experiments.context import Context


def hit_rate(requests, num_blocks=10_000):
    """Serve one after another on the engine's scheduler and KV manager; return hits over prompt tokens."""
    engine = Context().core(block_size=16, num_blocks=num_blocks, max_num_batched_tokens=8192)
    for index, (prompt, answer) in enumerate(requests):
        engine.run([Ask(f"r{index}", prompt, answer)])
    hits = sum(engine.outcomes[f"r{index}"].cached_tokens for index in range(len(requests)))
    return hits / sum(len(prompt) for prompt, _ in requests)


repeated = Fresh()(64)
this.reveal("repeat", int(hit_rate([(repeated, [1]), (repeated, [1])]) * 128))
rates = {make.__name__: [hit_rate(make()), hit_rate(make(stamped=True))] for make in (chat, agent, unrelated)}
this.reveal("chat", round(100 * rates["chat"][0], 1))
this.reveal("timestamp", round(100 * rates["chat"][1], 1))
this.record(chat=rates["chat"][0], stamped=rates["chat"][1], agent=rates["agent"][0])
this.holds(
    "the second prompt hits 48 tokens", round(hit_rate([(repeated, [1]), (repeated, [1])]) * 128) == 48
)
this.holds("the time at the head costs all hits", all(stamped == 0 for _, stamped in rates.values()))

# %% [markdown] name="why-48"
# The second prompt of 64 tokens has all its blocks in the cache and hits 48 tokens, not 64. To sample a token the
# engine needs the logits of the last position, so it computes at least one token, and a hit consists of full blocks.
# vLLM does the same.

# %% [markdown] name="live"
# Now with a model: one question three times, the third time with `n=4`, four samples of one prompt. Cached or
# computed, this engine's answers are the same (its kernels round alike, whatever the shape of a step).

# %% name="run-live"
from engine import LLM, SamplingParams
from engine.zoo.corpus import draw_cases

case = next(case for case in draw_cases(400, seed=5) if case.language == "en" and case.kind == "price")
questions = [case.prompt, case.prompt, case.prompt]
samples = [1, 1, 4]


def ask_all(enable_prefix_caching):
    """Return the texts, and the cached tokens of each request."""
    with LLM("shop", enable_prefix_caching=enable_prefix_caching, num_gpu_blocks_override=512) as llm:
        outputs = []
        for question, n in zip(questions, samples, strict=True):
            params = SamplingParams(temperature=0.8, seed=7, n=n, max_tokens=24)
            outputs += llm.generate([question], params, use_tqdm=False)
        texts = [[answer.text for answer in output.outputs] for output in outputs]
        return texts, [(len(output.prompt_token_ids), output.num_cached_tokens) for output in outputs]


# %% name="show-live"
(cached_texts, counts), (computed_texts, _) = ask_all(True), ask_all(False)
for n, (num_tokens, num_cached) in zip(samples, counts, strict=True):
    print(f"n={n}: {num_tokens} prompt tokens, {num_cached} from the cache")
print(f"the same answers with and without the cache: {cached_texts == computed_texts}")
this.record(same_answers=cached_texts == computed_texts)
this.holds(
    "cached or computed, the answers are the same", cached_texts == computed_texts and counts[1][1] > 0
)

# %% [markdown] name="plot"
# ## Plot

# %% name="plot-workloads"
from lessons.course.plots import COLOURS, figure

drawing, axes = figure(ylabel="hits, % of prompt tokens", title="Hit rate by workload")
for offset, index, colour, label in ((-0.2, 0, "blue", "plain"), (0.2, 1, "vermillion", "time at the head")):
    values = [100 * rate[index] for rate in rates.values()]
    bars = axes.bar([place + offset for place in range(3)], values, 0.38, color=COLOURS[colour], label=label)
    axes.bar_label(bars, fmt="%.0f")
axes.set_xticks(range(3), rates)
axes.legend()
this.plot(drawing)

# %% name="plot-sizes"
sizes = [60, 80, 100, 120, 140, 160, 180, 200, 220, 260]
drawing, axes = figure(
    xlabel="blocks in the pool", ylabel="hits, % of prompt tokens", title="Six chats that take turns"
)
by_size = [100 * hit_rate(chat(), size) for size in sizes]
axes.plot(sizes, by_size, color=COLOURS["blue"])
axes.set_ylim(0, 100)
this.plot(drawing)
print(", ".join(f"{size} blocks: {rate:.0f} %" for size, rate in zip(sizes, by_size, strict=True)))
system = 100 * (29 * 320) / sum(len(prompt) for prompt, _ in chat())
print(f"the system prompt alone, after its first time: {system:.0f} %")
this.holds("with room for all chats everything hits that can", by_size[-1] == 100 * rates["chat"][0])
this.holds("a few blocks less cost hits", by_size[sizes.index(180)] < by_size[-1])
this.holds("the system prompt survives longest", system <= by_size[0] < system + 5)

# %% [markdown] name="read-the-curve"
# LRU and users who take turns do not go together: the chat that comes next is the one that was released longest ago.
# If the pool holds all chats, everything hits that was computed before. If it lacks a few blocks, each chat evicts the
# tail of the next one. The system prompt survives longest, since every request touches it: with 60 blocks little else
# hits. Hit rate is a matter of *working set*: blocks
# that are used again, between two uses.

# %% [markdown] name="serve"
# ## Explore: the prefix tree
#
# First the smallest engine that needs a prefix cache: share, take blocks, compute, publish, release. Two details come
# from the real one: a block enters the cache after the step that computed it, and a table is released from its *end*.
# The hashes in it are yours if they passed; the cache is the piece that you build next.

# %% name="serve-pieces"
hashes_of, Cache = this.piece("11.1"), this.piece("11.2")


def serve(requests, num_blocks, tail_first=True, salt=b""):
    """Serve requests one after another; return the hit tokens of each, and the cache."""
    cache, free, hits = Cache(), list(range(num_blocks)), []
    for prompt, answer in requests:
        known = [*prompt, *answer[:-1]]  # the last token is never an input
        chain = hashes_of(known, 16, salt)
        table = cache.match(chain[: (len(prompt) - 1) // 16])
        hits.append(16 * len(table))
        for block in table:
            cache.touch(block)
        while len(table) * 16 < len(known):
            table.append(free.pop() if free else cache.evict())
        held = [index < hits[-1] // 16 for index in range(len(table))]
        for index in range(hits[-1] // 16, len(chain)):
            held[index] = cache.insert(chain[index], table[index])
        for index in sorted(range(len(table)), reverse=tail_first):
            if held[index]:
                cache.release(table[index])
            else:
                free.append(table[index])
    return hits, cache


# %% [markdown] name="explore"
# Each row is a chat, each column a block. A block that several chats share is drawn once, as high as all of them.
# Change how much of the prompt is shared, and the memory.


# %% name="draw-tree"
def rate_of(hits, requests):
    return sum(hits) / sum(len(prompt) for prompt, _ in requests)


def draw_tree(requests, users, cache, axes):
    """Draw the last prompt of each chat, block by block; return how many blocks are still cached."""
    rows = [hashes_of(prompt, 16) for prompt, _ in requests[-users:]]
    num_cached = 0
    for depth in range(max(map(len, rows))):
        top = 0
        while top < users:
            name = rows[top][depth] if depth < len(rows[top]) else None
            end = top + 1
            while end < users and name is not None and depth < len(rows[end]) and rows[end][depth] == name:
                end += 1
            if name is not None:
                is_cached = bool(cache.match(rows[top][: depth + 1])[depth:])
                num_cached += is_cached
                colour = COLOURS["blue"] if is_cached else "#DDDDDD"
                axes.bar(depth, end - top - 0.1, 0.9, bottom=top, color=colour, align="edge")
            top = end
    axes.set_ylim(users, 0)
    return num_cached


# %% name="explore-tree"
def explore_tree(shared_percent, num_blocks, users, turns):
    shared = 480 * shared_percent // 100
    requests = chat(users, turns, system=shared, question=40 + (480 - shared) // turns)
    hits, cache = serve(requests, num_blocks)
    drawing, axes = figure(xlabel="block", ylabel="chat", title="Blue: cached and reachable. Grey: evicted")
    num_cached = draw_tree(requests, users, cache, axes)
    return drawing, (
        f"hits: {rate_of(hits, requests):.1%} of the prompt tokens\n"
        f"blocks held: {len(cache)} of {num_blocks}; of the last prompts' blocks {num_cached} are reachable"
    )


this.explore(
    "prefix-tree",
    explore_tree,
    shared_percent=(0, 100, 60),
    num_blocks=[160, 80, 120, 240, 300],
    users=(1, 8, 6),
    turns=(1, 5, 4),
)

# %% [markdown] name="cache"
# ## Build
#
# **11.2** The cache. It knows blocks by their hash. A block with an owner stays. When its last owner leaves, its
# content stays too, and the block is *evictable*: free memory that may still be hit. So cached KV costs nothing
# until a request needs the block.
#
#     insert --> owned --release--> evictable --evict--> forgotten
#                      <--touch----


# %% name="11.2" tags=["exercise"]
# exercise 11.2
class PrefixCache:
    """Finds computed blocks by hash, and forgets the least recently released one first."""

    def __init__(self) -> None:
        raise NotImplementedError("11.2: which maps does the cache keep?")

    def __len__(self) -> int:
        """Return the number of blocks held, owned and evictable."""

    def match(self, hashes: list[bytes]) -> list[int]:
        """Return the blocks of the longest known prefix of `hashes`. Changes nothing."""

    def insert(self, block_hash: bytes, block: int) -> bool:
        """Remember an owned block with computed content; False, and no change, if the hash is known."""

    def touch(self, block: int) -> None:
        """A request shares the block: it is owned and cannot be evicted."""

    def release(self, block: int) -> None:
        """The last owner left: a block that is held becomes evictable, after all that were released before."""

    def evict(self) -> int | None:
        """Forget the least recently released evictable block and return it; None if there is none."""


# %% name="check-11.2"
this.check("11.2")

# %% [markdown] name="compare"
# The small engine again, now with your pieces if they passed, beside the real one.

# %% name="use-pieces"
hashes_of, Cache = this.piece("11.1"), this.piece("11.2")
requests = chat()
for size in (80, 160, 300):
    mine = rate_of(serve(requests, size)[0], requests)
    print(f"{size} blocks: pieces {mine:.1%}, engine {hit_rate(requests, size):.1%}")
    this.holds("the pieces hit as the engine does", abs(mine - hit_rate(requests, size)) < 0.001)
this.record(pieces=rate_of(serve(requests, 160)[0], requests), engine=hit_rate(requests, 160))

# %% [markdown] name="estimate"
# **11.3** Before you deploy: how many tokens of yesterday's prompts would have been hits, with memory for everything?
# It is the first number to know, and needs no engine. Write it without a cache: by prefixes.


# %% name="11.3" tags=["exercise"]
# exercise 11.3
def hit_tokens(prompts: list[list[int]], block_size: int) -> list[int]:
    """Return the tokens that each prompt finds in a cache that never evicts; the prompts run one after another.

    Shared are full blocks that an earlier prompt starts with, too. At least one token of a prompt is always computed:
    without it there are no logits. The cache is empty before the first prompt.
    """
    raise NotImplementedError(
        "11.3: keep the prefixes seen so far, and count those that a prompt starts with"
    )


# %% name="check-11.3"
this.check("11.3")

# %% name="use-11.3"
hit_tokens = this.piece("11.3")
found = {size: hit_tokens([prompt for prompt, _ in requests], size) for size in (1, 16, 64, 256)}
for block_size, hits in found.items():
    print(f"blocks of {block_size:3}: {rate_of(hits, requests):.1%} of the prompt tokens")
lost = [one - sixteen for one, sixteen in zip(found[1], found[16], strict=True)]
this.holds("blocks of 16 lose at most 15 tokens per prompt", 0 < max(lost) <= 15)
print(
    f"the engine, blocks of 16: {hit_rate(requests):.1%}. It keeps the KV of answers, too: the next turn sends them."
)

# %% [markdown] name="radix"
# Block size 1 is what a radix tree over tokens finds (SGLang's RadixAttention). Blocks of 16 lose at most 15 tokens
# per prompt. A tree and a chain of hashes answer the same question; the chain needs one dictionary, and its keys mean
# the same on every replica, so that a router can use them (lesson 14).

# %% [markdown] name="break"
# ## Break it: a token that changes, and the wrong end
#
# You saw the time at the head cost all hits. Where may it stand? Move it back, block by block. And a second, subtler
# fault: release a table from its head instead of its tail.

# %% name="break-timestamp"
drawing, axes = figure(
    xlabel="tokens before the time",
    ylabel="hits, % of prompt tokens",
    title="Where the time stands in the prompt",
)
places = list(range(0, 361, 40 if this.quick else 20))
by_place = [100 * hit_rate(chat(stamped=True, at=place)) for place in places]
axes.plot(places, by_place, color=COLOURS["vermillion"], label="with the time")
axes.axhline(100 * rates["chat"][0], color=COLOURS["blue"], linestyle="--", label="without")
axes.axvline(320, color=COLOURS["grey"], linestyle=":", label="end of the system prompt")
axes.legend(loc="center left")
axes.set_ylim(0, 100)
this.plot(drawing)
behind = by_place[places.index(320)]
print(f"at the head {by_place[0]:.0f} %, behind the system prompt {behind:.0f} %")
this.holds("the time behind the system prompt saves only the system prompt", 0 <= system - behind < 5)

# %% name="break-order"
for size in (120, 160, 200):
    tail, head = (rate_of(serve(requests, size, first)[0], requests) for first in (True, False))
    print(f"{size} blocks: released from the tail {tail:.1%}, from the head {head:.1%}")
    this.record(**{f"tail_{size}": tail, f"head_{size}": head})
    this.holds("the wrong end costs hits if memory is short", head < tail if size < 200 else head == tail)

# %% [markdown] name="break-read"
# The time behind the system prompt saves the system prompt and loses every history, which stands behind it. Put it at
# the *end*, into the newest message. As for the release order: `match` stops at the first unknown hash, so a chain
# without its head is unreachable, however many of its blocks are held.

# %% [markdown] name="first-difference"
# In production no message says which token changes. Compare the token ids of two consecutive prompts of one chat:
# the first difference is the culprit, and everything behind it is computed again. Ten lines in CI save a hit rate.


# %% name="find-difference"
def first_difference(one, two):
    """Return the position of the first different token."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two))
    )


for name, log in (("plain", chat()), ("time at 100", chat(stamped=True, at=100))):
    one, two = log[0][0], log[6][0]  # two turns of the first user
    at = first_difference(one, two)
    print(
        f"{name}: {len(one)} and {len(two)} tokens, first difference at {at}, so {at // 16 * 16} tokens can hit"
    )

# %% [markdown] name="tenants"
# Who shares with whom? Without a salt, everyone: a stranger who sends your prompt sees from a short TTFT, or from
# `cached_tokens` in the usage, that it was sent before. A salt per tenant ends that, and has a price.

# %% name="probe-tenants"
from quizzes.experiments.running import run_here

found = run_here("prefix_cache.salted_tenants", {"tenants": 4, "requests": 3, "system": 400, "own": 50})
for name in ("shared", "salted"):
    print(
        f"{name}: a stranger hits {found[f'probe_hit_{name}']} of a tenant's 450 tokens; hit rate "
        f"{found[f'{name}_hit_rate']:.0%}, {found[f'{name}_computed']:,} tokens computed"
    )
this.record(probe_salted=found["probe_hit_salted"])
this.holds("a salt hides a tenant's prompts", found["probe_hit_salted"] == 0 < found["probe_hit_shared"])
this.holds("and costs hits", found["salted_hit_rate"] < found["shared_hit_rate"])

# %% [markdown] name="say"
# ## Say it in 60 seconds

# %% name="say-it"
this.say()

# %% [markdown] name="questions"
# ## What you can answer now

# %% name="ask"
this.questions()
