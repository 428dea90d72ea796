# %% [markdown] name="why"
# # Lesson 07: paged KV, the allocator
#
# ## Why an interviewer asks
#
# The KV cache is the largest thing on a serving GPU after the weights, and the only one that grows while you look. Who
# may use which part of it decides how many requests run at once. "Explain PagedAttention" usually becomes:
#
# * What exactly was wasted before paging, and what is still wasted with it?
# * Block size 16 or 128: what gets better, what gets worse?
# * Two answers share a prompt. What happens in memory when one of them writes?
#
# You build the allocator in about 60 lines, and run the shipped model on it.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("07")

# %% [markdown] name="predict"
# ## Predict
#
# First, real lengths. `shop` answers questions of its test conversations, and we keep two numbers of each request:
# tokens of the prompt and tokens of the answer. The second number is unknown until the answer ends. That is the
# whole difficulty.

# %% name="lengths"
from engine import LLM, SamplingParams
from engine.zoo.corpus import draw_cases

num_requests, max_len = (32 if this.quick else 96), 1024
llm = LLM("shop", max_model_len=max_len)
prompts = [case.prompt for case in draw_cases(num_requests, seed=7)[:num_requests]]
answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=128), use_tqdm=False)
lengths = [(len(answer.prompt_token_ids), len(answer.outputs[0].token_ids)) for answer in answers]

prompt_lens, output_lens = zip(*lengths, strict=True)
for name, values in (("prompt", prompt_lens), ("answer", output_lens)):
    print(f"{name}: {min(values)} to {max(values)} tokens, mean {sum(values) / len(values):.0f}")

# %% [markdown] name="two-allocators"
# These requests now compete for a cache of 8,192 slots (a slot holds keys and values of one token). They all wait at
# the start, and are served first come, first served.
#
# **Contiguous**: a request gets one run of 1,024 slots, the longest sequence that the model may see: its length is
# unknown, and a run cannot grow. **Paged**: a request gets a block of 16 slots whenever its last one is full.

# %% name="predict-running"
this.predict(
    "most-at-once",
    ...,
    question="Contiguous: 8192 / 1024 = 8 requests run at once. How many run at once, at the peak, with paging?",
    unit="requests",
)

# %% name="predict-waste"
this.predict(
    "empty-share",
    ...,
    question="With paging: which share of the slots in allocated blocks holds no token, over the whole run?",
    unit="%",
)

# %% [markdown] name="first-piece"
# ## First piece: the pool
#
# **07.1** The pool. A free list alone is not enough: several requests may own a block, so each block counts its
# owners. Free blocks leave in the order in which they became free. That order looks arbitrary now. In lesson 11 it
# makes the pool an LRU cache for free.
#
# If a call cannot do everything, it does nothing. A scheduler that meets a half-done `take` has no way back.

# %% name="07.1" tags=["exercise"]
# exercise 07.1
from collections.abc import Sequence


class BlockAllocator:
    """A pool of KV blocks, ids 0 to num_blocks - 1, each with a count of its owners; 0 owners: free."""

    def __init__(self, num_blocks: int) -> None:
        raise NotImplementedError("07.1: the free blocks in order, and the number of owners of each block")

    @property
    def num_free(self) -> int: ...

    def ref_count(self, block: int) -> int: ...

    def take(self, count: int) -> list[int]:
        """Return the `count` blocks that have been free longest, with one owner each; a new pool starts at 0, 1, ...

        Raises MemoryError, and changes nothing, if fewer are free.
        """

    def share(self, block: int) -> None:
        """Add an owner. Raises ValueError if the block is free."""

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one owner of each block, in this order. A block that loses its last owner becomes free.

        Raises ValueError, and changes nothing, if a block is listed more often than it has owners.
        """


# %% name="check-07.1"
this.check("07.1")

# %% [markdown] name="random-test"
# The last check is worth stealing. It draws 2,000 operations, applies them to your pool *and* to a model that is too
# simple to be wrong, and compares. If they differ, it leaves out operations as long as they still differ, and shows
# the few that remain. An allocator bug found that way takes a minute; found in production, a week.

# %% [markdown] name="run"
# ## Run it
#
# Paged: the engine's own scheduler and KV manager, without a model (the lengths decide everything). After each step we
# note how many slots are allocated, and how many tokens are stored in them.

# %% name="run-paged"
import numpy as np

from quizzes.experiments.context import Context
from quizzes.experiments.core_engine import Ask

SLOTS = 8192


def run_paged(block_size):
    """Return [steps, 3]: tokens stored, slots allocated, requests running."""
    sizes = {"num_blocks": SLOTS // block_size, "block_size": block_size}
    engine, history = Context(0).core(**sizes, enable_prefix_caching=False), []
    for index, (prompt, output) in enumerate(lengths):
        engine.add(Ask(str(index), prompt, output))
    while engine.scheduler.has_unfinished():
        view = engine.step()
        held = [sum(view.rows[name]) for name in view.rows]
        blocks = sum(-(-tokens // block_size) for tokens in held)
        history.append((sum(held), blocks * block_size, len(held)))
    return np.array(history), engine


paged, engine = run_paged(16)
this.reveal("most-at-once", int(paged[:, 2].max()))
print(f"{len(paged)} steps, {engine.num_preemptions} preemptions")

# %% [markdown] name="contiguous"
# Contiguous: first fit in a list of runs. With runs of one size this is easy; the interesting part is how much of a run
# is never used.


# %% name="run-contiguous"
def run_contiguous(slots_per_request):
    """Return [steps, 3] as above; a request of index i takes slots_per_request(i) for its whole life."""
    waiting, running, history = list(range(num_requests)), {}, []
    while waiting or running:
        taken = sum(slots_per_request(index) for index in running)
        while waiting and taken + slots_per_request(waiting[0]) <= SLOTS:
            index = waiting.pop(0)
            running[index] = prompt_lens[index]
            taken += slots_per_request(index)
        history.append((sum(running.values()), taken, len(running)))
        running = {
            index: tokens + 1
            for index, tokens in running.items()
            if tokens + 1 < prompt_lens[index] + output_lens[index]
        }
    return np.array(history)


# %% name="compare-runs"
contiguous = run_contiguous(lambda index: max_len)
for name, run in (("contiguous", contiguous), ("paged", paged)):
    print(
        f"{name:10}: {len(run):4} steps, {run[:, 0].sum() / (SLOTS * len(run)):.0%} of the cache holds tokens"
    )
this.reveal("empty-share", round(100 * float(1 - paged[:, 0].sum() / paged[:, 1].sum()), 2))
this.record(paged_peak=int(paged[:, 2].max()), contiguous_peak=int(contiguous[:, 2].max()))
this.holds("8 requests run at once", contiguous[:, 2].max() == SLOTS // max_len)
this.holds("much of a run is never used", contiguous[:, 0].sum() < 0.6 * contiguous[:, 1].sum())
this.holds("the paged run needs fewer steps", len(paged) < len(contiguous))
mean = sum(map(sum, lengths)) / len(lengths)
this.holds("8,192 / 580 = 14", this.quick or (round(mean), int(SLOTS / mean)) == (580, 14))
this.holds("the peak is more than that", paged[:, 2].max() > SLOTS / mean)
this.holds("paging computes some tokens twice", this.quick or engine.num_preemptions > 0)

# %% [markdown] name="same-work"
# Why more than 8,192 / 580 = 14? That is the mean; the peak comes when several short prompts run together.
#
# Each request gets the same tokens in both runs; paging even computes some of them twice, after a preemption (lesson
# 09). It needs fewer steps because each step works for more requests, and a decode step reads all weights whether it
# works for one request or for many (lesson 03). That is how less waste of *memory* becomes *throughput*.

# %% [markdown] name="plot"
# ## Plot

# %% name="plot-areas"
from lessons.course.plots import COLOURS, figure, style

drawing, axes = figure(width=7.2)
drawing.clear()
for axes, (name, run) in zip(
    drawing.subplots(1, 2, sharey=True), (("contiguous", contiguous), ("paged", paged)), strict=True
):
    style(axes)
    stored, allocated, _ = run.T
    axes.stackplot(
        range(len(run)),
        stored,
        allocated - stored,
        SLOTS - allocated,
        colors=[COLOURS["blue"], COLOURS["orange"], "#EEEEEE"],
        labels=["tokens", "allocated, empty", "free"],
    )
    axes.set(title=f"{name}: {run[:, 2].max()} at once", xlabel="step", xlim=(0, len(contiguous)))
    axes.set_ylim(0, SLOTS)
axes.legend(loc="upper right")
drawing.axes[0].set_ylabel("slots")
this.plot(drawing)

# %% [markdown] name="three-wastes"
# Orange has two causes. **Reserved**: slots that this request will use later, empty until then. **Internal
# fragmentation**: slots of its run that it never uses. A third waste hides in the free slots. **External
# fragmentation**: holes that are too small for the next run. Interviewers like to hear the three apart.
#
# Runs of one size have no external part. `first_fit` below knows each final length in advance, which is impossible, and
# so has no internal part; the holes remain. `buddy` rounds that length up to a power of two. An experiment of the
# question bank runs all four allocators on the first 32 of our lengths:

# %% name="four-allocators"
from quizzes.experiments.running import run_here

few = lengths[:32]
race = run_here(
    "memory.allocator_race",
    {"slots": SLOTS, "max_len": max_len, "prompts": [p for p, _ in few], "outputs": [o for _, o in few]},
)
print("allocator     at once   steps   allocated, empty   steps in which only holes were in the way")
for row in zip(*(race[key] for key in ("names", "peak_running", "steps", "waste", "scattered")), strict=True):
    print("{:13} {:8} {:7} {:18.1%} {:10}".format(*row))
holes, empty = (dict(zip(race["names"], race[key], strict=True)) for key in ("scattered", "waste"))
this.holds("runs of one size have no external part", holes["reserve_max"] == holes["paged"] == 0)
this.holds("the holes remain for first_fit", holes["first_fit"] > 0 and empty["first_fit"] < 0.05)

# %% [markdown] name="explore"
# ## Explore: a pool that fills
#
# A pool of 512 slots, with three other requests in it that take turns with ours. Each row shows 32 slots. Our tokens
# need not lie together: the block table says where they are.

# %% name="draw-pool"
from prep_common.text import counted


def pool_picture(block_size, prompt, generated):
    pool, tables = BlockAllocator(512 // block_size), {name: [] for name in "ABC*"}
    goals = {"A": 90, "B": 40, "C": 60, "*": prompt + generated}
    cells = np.zeros(512, dtype=int)
    for tokens in range(max(goals.values())):
        for name, table in tables.items():
            if tokens < goals[name] and tokens == len(table) * block_size:
                table += pool.take(1)
    for name, table in tables.items():
        for index, block in enumerate(table):
            used = min(block_size, goals[name] - index * block_size)
            here = cells[block * block_size :][:block_size]
            here[:used], here[used:] = (3, 4) if name == "*" else (1, 2)
    return draw_cells(cells, block_size), (
        f"our block table: {tables['*']}\n"
        f"{goals['*']} tokens in {counted(len(tables['*']), 'block')} of {block_size}; "
        f"slots empty: {len(tables['*']) * block_size - goals['*']}; blocks free: {pool.num_free}\n"
        f"the last token is in slot {slot_mapping(tables['*'], goals['*'] - 1, 1, block_size)[0]}"
    )


# %% name="draw-cells"
def draw_cells(cells, block_size):
    drawing, axes = figure(title="slots of the pool", xlabel="slot in the row", ylabel="row of 32 slots")
    labels = ("free", "others", "others, empty", "ours", "ours, empty")
    colours = ("#EEEEEE", COLOURS["grey"], "#BBBBBB", COLOURS["blue"], COLOURS["orange"])
    rgb = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours], np.uint8)
    axes.imshow(rgb[cells.reshape(-1, 32)], aspect="auto", interpolation="nearest")
    for edge in range(0, 32, min(32, block_size)):
        axes.axvline(edge - 0.5, color="white", linewidth=1.5)
    for row in range(16):
        axes.axhline(row - 0.5, color="white", linewidth=1.5)
    axes.grid(False)
    for label, colour in zip(labels, colours, strict=True):
        axes.bar(0, 0, color=colour, label=label)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return drawing


# %% name="explore-pool"
BlockAllocator, slot_mapping = this.piece("07.1"), this.piece("07.3")
this.explore(
    "block-table", pool_picture, block_size=[16, 4, 8, 32, 64], prompt=(1, 160, 33), generated=(0, 64, 20)
)

# %% [markdown] name="explore-questions"
# Which prompt length wastes most at block size 64, and which wastes nothing? Set 4 and count the entries of the table:
# what would it cost to read it at 100,000 tokens? The next cell measures both sides on our real lengths.

# %% name="sizes"
print("block size   empty   table entries per request   most at once")
for block_size in (4, 8, 16, 32, 64, 128):
    run, _ = run_paged(block_size)
    entries = np.mean([-(-(p + o - 1) // block_size) for p, o in lengths])
    print(
        f"{block_size:10} {1 - run[:, 0].sum() / run[:, 1].sum():7.1%} {entries:27.1f} {run[:, 2].max():14}"
    )
    unused = (run[:, 1] - run[:, 0]).sum() / run[:, 2].sum()
    this.holds("about half a block of waste per request", this.quick or 0.7 < unused / (block_size / 2) < 1.3)

# %% [markdown] name="block-size-trade"
# Expect about half a block of waste per request. Large blocks have other merits: fewer table entries, longer
# contiguous reads for the kernel, fewer and larger copies. And other costs: a prefix cache shares whole blocks only
# (lesson 11).

# %% [markdown] name="build"
# ## Build
#
# **07.2** Sharing. A fork copies the table, not the blocks. Full blocks are never written again, so they can be shared
# for ever. The last, half-full block is the problem: the first writer must leave it to the others.

# %% name="07.2" tags=["exercise"]
# exercise 07.2
from typing import Any


def fork(allocator: Any, table: list[int]) -> list[int]:
    """Return the block table of a child that shares all blocks of its parent; each gets one more owner.

    allocator: take(count), share(block), release(blocks), ref_count(block), num_free.
    """
    raise NotImplementedError("07.2: add an owner to every block, return a table of its own")


def write(allocator: Any, table: list[int], index: int) -> tuple[int, int] | None:
    """Prepare to write into the block at `index` of this table, which no other table may see.

    Return None if this table is the only owner. Otherwise replace table[index] by a new block and return
    (source, target): the caller copies the contents of source to target. Raises MemoryError, and changes nothing,
    if no block is free.
    """
    raise NotImplementedError("07.2: copy on write")


# %% name="check-07.2"
this.check("07.2")

# %% [markdown] name="slots"
# **07.3** The last step from "token 37 of this request" to an address. The kernel that writes keys and values gets one
# slot number per token of the batch. An off-by-one here raises no error: it overwrites the cache of another request.


# %% name="07.3" tags=["exercise"]
# exercise 07.3
def slot_mapping(table: list[int], start: int, count: int, block_size: int) -> list[int]:
    """Return the cache slots of the tokens at positions start, ..., start + count - 1 of one request.

    table: its block ids in logical order. Slot s of the cache is place s % block_size of block s // block_size.
    Raises ValueError if a position lies behind the last block.
    """
    raise NotImplementedError("07.3: block of the position from the table, then the place in it")


# %% name="check-07.3"
this.check("07.3")

# %% [markdown] name="use"
# All three pieces, under the shipped model. The plain model of lesson 01 accepts any object with
# `append(layer, key, value)` that returns all keys and values so far. Ours finds them through a block table.

# %% name="paged-cache"
import torch

from lessons.given.model import PlainModel

model = PlainModel.load("shop")
BlockAllocator, slot_mapping = this.piece("07.1"), this.piece("07.3")
(fork, write), BLOCK = this.piece("07.2"), 16


class PagedCache:
    def __init__(self, pool, store, table=()):
        self.pool, self.store, self.table, self.length = pool, store, list(table), 0

    def make_room(self, count):
        """Blocks for `count` more tokens; a shared last block is copied before anything is written to it."""
        if self.length % BLOCK and (copy := write(self.pool, self.table, len(self.table) - 1)):
            source, target = (slice(block * BLOCK, (block + 1) * BLOCK) for block in copy)
            self.store[:, :, target] = self.store[:, :, source]
        self.table += self.pool.take(-(-(self.length + count) // BLOCK) - len(self.table))
        self.length += count

    def append(self, layer, key, value):
        start = self.length - len(key)
        self.store[layer][:, slot_mapping(self.table, start, len(key), BLOCK)] = torch.stack((key, value))
        return self.store[layer][:, slot_mapping(self.table, 0, self.length, BLOCK)]


# %% name="continue"
def new_cache(num_blocks=64):
    shape = (model.num_layers, 2, num_blocks * BLOCK, model.num_kv_heads, model.head_dim)
    return PagedCache(BlockAllocator(num_blocks), torch.zeros(shape))


def feed(cache, ids):
    """Compute tokens behind those of the cache; return the logits of the last."""
    cache.make_room(len(ids))
    return model(ids, cache=cache, start=cache.length - len(ids))[-1]


def forked(parent):
    child = PagedCache(parent.pool, parent.store, fork(parent.pool, parent.table))
    child.length = parent.length
    return child


# %% [markdown] name="three-continuations"
# Three continuations of one prompt, as with `n=3`: the prompt is computed once, its cache is forked twice, and the
# three start with the three most likely tokens. They take turns, a token at a time. Each must generate exactly what it
# generates alone.

# %% name="run-forks"
prompt_ids = list(answers[0].prompt_token_ids)
prompt_ids = prompt_ids[: len(prompt_ids) - len(prompt_ids) % BLOCK + 5 - BLOCK]  # ends inside a block
num_tokens = 12 if this.quick else 24


def three_continuations():
    parent = new_cache()
    first = feed(parent, prompt_ids).topk(3).indices.tolist()
    caches, texts = [parent, forked(parent), forked(parent)], [[token] for token in first]
    before = parent.pool.num_free
    for _ in range(num_tokens):
        for cache, text in zip(caches, texts, strict=True):
            text.append(int(feed(cache, text[-1:]).argmax()))
    return texts, caches, before


def alone(token):
    cache, text = new_cache(), [token]
    feed(cache, prompt_ids)
    for _ in range(num_tokens):
        text.append(int(feed(cache, text[-1:]).argmax()))
    return text


# %% name="compare-forks"
texts, caches, before = three_continuations()
right = sum(text == alone(text[0]) for text in texts)
print(f"{right} of 3 continuations equal those of a run of their own")
for cache in caches:
    print(f"table: {len(cache.table)} blocks, the last four are {cache.table[-4:]}")
in_use = 64 - caches[0].pool.num_free
print(f"blocks in use: {in_use}; without sharing: {sum(len(cache.table) for cache in caches)}")
this.record(forks_right=right, shared_blocks=in_use)
this.holds("each must generate exactly what it generates alone", right == 3)

# %% [markdown] name="break"
# ## Break it: write without a copy
#
# One line less: `write` always returns None. Nothing crashes, no check of the pool fails, all counts add up.

# %% name="predict-broken"
this.predict(
    "right-without-copies",
    ...,
    question="How many of the three continuations are still the ones that they generate alone?",
    unit="of 3",
)

# %% name="run-broken"
careful_write = write
write = lambda allocator, table, index: None  # noqa: E731
broken, broken_caches, _ = three_continuations()
write = careful_write

still_right = sum(text == good for text, good in zip(broken, texts, strict=True))
this.reveal("right-without-copies", still_right)
tokenizer = llm.llm_engine.tokenizer
for name, found in (("copy on write", texts), ("no copy", broken)):
    for text in found:
        print(f"{name:13} {tokenizer.decode(text)[:80]!r}")
pool = broken_caches[0].pool
print(
    "owners of the block that all three write:",
    pool.ref_count(broken_caches[0].table[len(prompt_ids) // BLOCK]),
)
this.record(forks_right_without_copy=still_right)
good = [text == careful for text, careful in zip(broken, texts, strict=True)]
this.holds("only the third, which writes last, reads its own keys", good == [False, False, True])

# %% [markdown] name="v1"
# All three write into the same slots. The third one writes last in each turn, so it reads its own keys, and the others
# read the keys of the third. The texts still consist of the shop's words: only the comparison
# finds the bug.
#
# vLLM's first engine (V0) forked like this. V1, and this engine, avoid the copy: requests share only *full* blocks,
# through the prefix cache, and each computes its last, partial block itself. Up to one block of tokens is computed
# again; in exchange no block that is written is ever shared. `engine/frontend/block_space_manager.py` keeps V0's
# interface next to it, for comparison.

# %% [markdown] name="say"
# ## Say it in 60 seconds
#
# Speak first, then type what you said, then answer the probes.

# %% name="say-it"
this.say()

# %% [markdown] name="questions"
# ## What you can answer now

# %% name="ask"
this.questions()
