# %% [markdown] name="why"
# # Lesson 02: KV cache
#
# ## Why an interviewer asks
#
# "Why is there a KV cache?" opens the topic. A good answer names what is stored, what is saved, and the price. Then:
#
# * How large is the cache of a 70B model at 8,192 tokens of context?
# * What does grouped-query attention change, and what does it leave as it is?
# * You add a cache, and the model talks nonsense from the second token on. Where do you look?
#
# You write the cache and attention over it, and run the shipped model on both.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("02")

# %% [markdown] name="idea"
# ## Predict
#
# In each layer a token becomes a query, a key and a value. Later tokens read its key and its value. They never read
# its query. Because attention is causal, a token's key and value do not depend on what follows: computed once, they
# stay valid. So keep them, and compute only the new token.
#
# The prompt is that of lesson 01.

# %% name="prompt"
from engine import LLM, SamplingParams
from lessons.given.model import PlainModel

llm = LLM("shop")
notes = {"role": "system", "content": "Silver Harbor costs 640 yen. Silver Harbor spans 12 volumes."}
question = {"role": "user", "content": "How much is Silver Harbor?"}
prompt_ids = llm.llm_engine.input_processor.chat_prompt([notes, question])["prompt_token_ids"]
model = PlainModel.load("shop")
num_tokens = 24 if this.quick else 96
print(f"{len(prompt_ids)} prompt tokens, {num_tokens} tokens to generate")
print(f"{model.num_layers} layers, {model.num_heads} query heads, {model.num_kv_heads} KV heads", end=", ")
print(f"head_dim {model.head_dim}, fp32")

# %% name="predict-tokens"
this.predict(
    "tokens-computed",
    ...,
    question="With a cache: how many tokens go through the layers to read the prompt and generate?",
    unit="tokens",
)

# %% name="predict-bytes"
this.predict(
    "bytes-per-token", ..., question="How many bytes does one token take in this cache, in fp32?", unit="B"
)

# %% name="predict-difference"
this.predict(
    "first-wrong-token",
    ...,
    question="A bug: each decode pass claims that its token stands at position 0. "
    "Which output token is the first that differs from the correct text? (The first output token is number 1.)",
    unit="",
)

# %% [markdown] name="first-piece"
# ## First piece: the cache
#
# **02.1** The cache. Memory is allocated once, for the longest sequence; `append` fills it. Growing a tensor with
# `torch.cat` would copy the whole cache at each token. The price of one allocation: memory is taken for
# tokens that may never come. Lesson 07 solves that.

# %% name="02.1" tags=["exercise"]
# exercise 02.1
from torch import Tensor


class KVCache:
    """Keys and values of one sequence, for every layer; fp32.

    length: tokens that every layer holds.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, max_len: int) -> None:
        raise NotImplementedError("02.1: allocate the cache, and count the tokens of each layer")

    @property
    def length(self) -> int:
        raise NotImplementedError("02.1: tokens that every layer holds")

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k and v [n, kv_heads, head_dim] behind the layer's tokens; return all of them, oldest first.

        Returns keys and values, each [tokens of this layer, kv_heads, head_dim].
        Raises ValueError, and changes nothing, if the layer would hold more than max_len tokens.
        """
        raise NotImplementedError("02.1: write behind the last token, return keys and values so far")


# %% name="check-02.1"
this.check("02.1")

# %% [markdown] name="run"
# ## Run it
#
# `PlainModel` takes your cache. After each layer's projections it calls `cache.append(layer, k, v)` and attends over
# what comes back (exercise 02.2). The first pass computes the whole prompt, the *prefill*. Every later pass computes
# one token, a *decode* step, and must say where that token stands: `start=cache.length`.

# %% name="generate"
from time import perf_counter

your_cache, attention = this.piece("02.1"), this.piece("02.2")


def generate(num_tokens, cached=True, decode=None):
    """Return new tokens, seconds and logits of each pass; decode(token, cache) replaces the decode pass."""
    cache = your_cache(model.num_layers, model.num_kv_heads, model.head_dim, len(prompt_ids) + num_tokens)
    ids, seconds, logits = [], [], []
    for step in range(num_tokens):
        began = perf_counter()
        if not cached:
            last = model(prompt_ids + ids, attend=attention)[-1]
        elif step == 0:
            last = model(prompt_ids, cache=cache, attend=attention)[-1]
        elif decode is None:
            last = model(ids[-1:], cache=cache, start=cache.length, attend=attention)[-1]
        else:
            last = decode(ids[-1], cache)[-1]
        seconds.append(perf_counter() - began)
        logits.append(last)
        ids.append(int(last.argmax()))
    return ids, seconds, logits


# %% name="count"
counts, runs = {}, {}
for name, cached in (("without a cache", False), ("with a cache", True)):
    before = model.num_tokens_computed
    runs[name] = generate(num_tokens, cached)
    counts[name] = model.num_tokens_computed - before
    print(f"{name:16} {counts[name]:6,} tokens through the layers")
this.reveal("tokens-computed", counts["with a cache"])
print(f"{counts['without a cache'] / counts['with a cache']:.1f} times fewer")
this.holds(
    "one token fewer than prompt and answer", counts["with a cache"] == len(prompt_ids) + num_tokens - 1
)

# %% [markdown] name="why-one-less"
# One token fewer than prompt and answer together: the last generated token is never fed back, so its key and value
# are never computed. The same off-by-one appears in every engine's counters.
#
# A cache must not change the answer. Compare the tokens of three programs, then the logits of two.

# %% name="compare" tags=["varies"]
params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
[output] = llm.generate([{"prompt_token_ids": prompt_ids}], params, use_tqdm=False)
without, with_cache = runs["without a cache"], runs["with a cache"]
same = without[0] == with_cache[0] == list(output.outputs[0].token_ids)
print(f"without a cache, with it, and the engine agree on {num_tokens} tokens: {same}")
gap = max(float((a - b).abs().max()) for a, b in zip(without[2], with_cache[2], strict=True))
print(f"largest difference of a logit: {gap:.1e}")
this.record(tokens_computed=counts["with a cache"], same_tokens=same, logit_gap=gap)
this.holds("a cache must not change the answer", same)
this.holds("equal tokens, but not always equal bits: logits within 1e-4", 0 < gap < 1e-4)

# %% [markdown] name="not-bitwise"
# Equal tokens, but not always equal bits. A product of one row and a product of many rows add the same numbers in a
# different order. That is why the claim is "logits within 1e-4", and why two near-equal logits can swap.
# Lesson 04 returns to this.

# %% [markdown] name="plot"
# ## Plot
#
# The time of each pass, median of several runs. Lesson 01 compared a naive loop with the engine; here both lines run
# the same plain torch code, so the gap between them is the cache and nothing else.

# %% name="measure" tags=["varies"]
import numpy as np

generate(4), generate(4, cached=False)  # warm up
repeats = 3 if this.quick else 7
times = {
    name: 1e3 * np.median([generate(num_tokens, cached)[1] for _ in range(repeats)], axis=0)
    for name, cached in (("without a cache", False), ("with a cache", True))
}
edge = max(2, num_tokens // 6)
growth = {}
for name, passes in times.items():
    growth[name] = np.median(passes[-edge:]) / np.median(passes[1 : 1 + edge])
    print(f"{name:16} the last passes take {growth[name]:.2f} times as long as the first decode passes")
this.record(growth_without=float(growth["without a cache"]), growth_with=float(growth["with a cache"]))
if not this.quick:
    prefill, *steps = times["with a cache"]
    this.holds("the lower line starts with a step", prefill > 1.5 * np.median(steps))
    this.holds("then it is flat", growth["with a cache"] < 1.3 < growth["without a cache"])

# %% name="plot-time" tags=["varies"]
from lessons.course.plots import COLOURS, figure

drawing, axes = figure(xlabel="output token", ylabel="ms", title="Time of each pass, same code, one change")
for (name, passes), colour in zip(times.items(), ("vermillion", "blue"), strict=True):
    axes.plot(np.arange(1, num_tokens + 1), passes, color=COLOURS[colour], marker="", label=name)
axes.set_ylim(0)
axes.legend()
this.plot(drawing)

# %% [markdown] name="read-the-plot"
# The lower line starts with a step: its first pass reads the prompt. Then it is flat, because each pass computes one
# token. It is not flat forever: attention reads all keys and values, so its share grows with the context. At these
# lengths that share is small.
#
# What grows instead is memory.

# %% name="plot-trade"
kv_bytes, fitting = this.piece("02.3")
per_token = kv_bytes(model.num_layers, model.num_kv_heads, model.head_dim, 4)
this.reveal("bytes-per-token", per_token)
held = len(prompt_ids) + np.arange(num_tokens)
drawing, axes = figure(
    xlabel="output token", ylabel="tokens computed so far", title="Compute saved, memory spent"
)
axes.plot(np.cumsum(held), color=COLOURS["vermillion"], marker="", label="computed, without a cache")
axes.plot(held, color=COLOURS["blue"], marker="", label="computed, with a cache")
memory = axes.twinx()
memory.plot(held * per_token / 1024, color=COLOURS["black"], marker="", linestyle="--", label="KiB held")
memory.set_ylabel("KiB")
memory.set_ylim(0)
axes.set_ylim(0)
axes.legend(handles=[*axes.lines, *memory.lines], loc="upper left")
this.plot(drawing)
print(f"after the last pass: {held[-1]} tokens x {per_token:,} B = {held[-1] * per_token / 1024:,.0f} KiB")

# %% [markdown] name="order-of-growth"
# Without a cache, the layers see 1 + 2 + ... + n tokens: the work is quadratic in the length, and attention's part is
# cubic. With it the layers' work is linear and attention's quadratic. The cache removes one power of n. It does not
# make attention linear.

# %% [markdown] name="explore"
# ## Explore: what a token costs, and how many fit
#
# Llama-2 7B has 32 layers and 32 heads of width 128, each with its own keys and values. Give it fewer KV heads. The
# weights stay in bf16; they become smaller too, because the key and value projections do. The widget counts both and
# leaves out activations. Choose the type of the cache, the memory of a card, and the context of a request.

# %% name="explore-bytes"
from dataclasses import replace

from engine.sim.models import get_model

KINDS = {"MHA: 32 KV heads": 32, "GQA: 8 KV heads": 8, "GQA: 4 KV heads": 4, "MQA: 1 KV head": 1}
DTYPES = {"bf16": 2, "fp32": 4, "fp8": 1}
LLAMA = get_model("llama-2-7b")
shape = LLAMA.num_layers, LLAMA.num_heads, LLAMA.num_kv_heads, LLAMA.head_dim
this.holds("32 layers, and 32 heads of width 128 with their own keys and values", shape == (32, 32, 32, 128))

# %% name="draw-bytes"


def what_fits(heads, dtype, memory_gib, context):
    each = {kind: kv_bytes(32, count, 128, DTYPES[dtype]) for kind, count in KINDS.items()}
    weights = {kind: 2 * replace(LLAMA, num_kv_heads=count).num_params for kind, count in KINDS.items()}
    fits = {kind: fitting(memory_gib * 2**30, weights[kind], each[kind]) for kind in KINDS}
    drawing, axes = figure(xlabel="tokens that fit", title=f"{memory_gib} GiB, {dtype} cache", xscale="log")
    colours = [COLOURS["vermillion" if kind == heads else "sky"] for kind in KINDS]
    axes.barh(list(KINDS), [max(1, count) for count in fits.values()], color=colours)
    axes.set_xlim(1e3, 1e7)
    axes.invert_yaxis()
    mine = each[heads]
    return drawing, (
        f"{heads}, {dtype}: {mine:,} B ({mine / 1024:g} KiB) per token; {fits[heads]:,} tokens fit.\n"
        f"A request of {context:,} tokens takes {context * mine / 2**30:.2f} GiB; "
        f"{fits[heads] // context} such requests fit at once."
    )


few_heads = replace(LLAMA, num_kv_heads=8).num_params
this.holds("the weights become smaller, too", few_heads < LLAMA.num_params)

# %% name="explore-cache"
this.explore(
    "bytes-per-token",
    what_fits,
    heads=list(KINDS),
    dtype=list(DTYPES),
    memory_gib=[24, 16, 48, 80],
    context=(256, 8192, 4096),
)

# %% [markdown] name="explore-questions"
# Find out: How many requests of 4,096 tokens does a 24 GiB card hold with MHA, and how many with 8 KV heads? Which
# saves more, going from MHA to 8 KV heads or from bf16 to fp8? What happens on the 16 GiB card?
#
# The number of *query* heads never entered. GQA leaves the queries and their arithmetic as they are; several query
# heads read the same key head.

# %% name="seventy-b"
for name in ("llama-2-70b", "llama-3.1-70b"):
    shape = get_model(name)
    each = kv_bytes(shape.num_layers, shape.num_kv_heads, shape.head_dim, 2)
    if_mha = kv_bytes(shape.num_layers, shape.num_heads, shape.head_dim, 2)
    print(f"{name}: {each / 1024:g} KiB per token, {8192 * each / 2**30:g} GiB at 8,192 tokens", end="; ")
    print(f"with {shape.num_heads} KV heads it would be {8192 * if_mha / 2**30:g} GiB")
    assert each == shape.kv_elements_per_token() * 2

# %% [markdown] name="build"
# ## Build
#
# **02.2** Attention over the cache. Query *i* of a pass stands at `first_position + i`, and sees keys up to its own
# position. In a decode step there is one query and nothing to hide, so a missing mask goes unnoticed until a prefill
# arrives.

# %% name="02.2" tags=["exercise"]
# exercise 02.2
import torch
from torch import Tensor


def attend(q: Tensor, K: Tensor, V: Tensor, first_position: int) -> Tensor:
    """Return causal attention of q [n, heads, head_dim] over K and V [length, kv_heads, head_dim]; shape of q.

    Query i stands at position first_position + i; key j stands at position j. Scores are divided by
    sqrt(head_dim). heads is a multiple of kv_heads: neighbouring query heads share a key head.
    """
    raise NotImplementedError("02.2: scores per head, mask later keys, softmax, weighted sum of values")


# %% name="check-02.2"
this.check("02.2")

# %% [markdown] name="bytes"
# **02.3** The arithmetic that every capacity question starts with.


# %% name="02.3" tags=["exercise"]
# exercise 02.3
def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Return the bytes that the cache keeps for one token, over all layers."""
    raise NotImplementedError("02.3: keys and values, layers, heads, width, bytes")


def tokens_that_fit(memory_bytes: int, weight_bytes: int, bytes_per_token: int) -> int:
    """Return how many whole tokens fit beside the weights; 0 if the weights alone do not fit."""
    raise NotImplementedError("02.3: divide what the weights leave")


# %% name="check-02.3"
this.check("02.3")

# %% [markdown] name="break"
# ## Break it: forget the position
#
# A cache makes the position a second piece of state. It enters twice: RoPE rotates the query and key by it, and the
# mask compares with it. Two bugs: `start=0` in both places, and `start=0` for RoPE alone.

# %% name="broken"


def at_zero(token, cache):
    return model([token], cache=cache, start=0, attend=attention)


def rope_at_zero(token, cache):
    return model([token], cache=cache, start=0, attend=lambda q, k, v, _: attention(q, k, v, len(k) - len(q)))


right = runs["with a cache"][0]
decode_text = llm.llm_engine.tokenizer.decode
wrong_at = {}
for name, decode in (("correct", None), ("position 0", at_zero), ("position 0 in RoPE only", rope_at_zero)):
    before = model.num_tokens_computed
    ids, _, logits = generate(num_tokens, decode=decode)
    computed = model.num_tokens_computed - before
    this.holds("the counters are right in both runs", computed == counts["with a cache"])
    wrong_at[name] = next((i + 1 for i in range(num_tokens) if ids[i] != right[i]), 0)
    print(f"{name:24} first wrong token: {wrong_at[name] or 'none'}   {decode_text(ids[:12])!r}")
this.reveal("first-wrong-token", wrong_at["position 0"])
this.record(wrong_at=wrong_at["position 0"], wrong_at_rope=wrong_at["position 0 in RoPE only"])
this.holds(
    "only the bugs change a token, and not the first",
    wrong_at.pop("correct") == 0 and min(wrong_at.values()) > 1,
)

# %% [markdown] name="broken-words"
# The first token is right under both bugs: the prefill starts at position 0 anyway. So a test that
# generates one token passes. With `start=0` the mask hides everything but the first key. With the RoPE bug every
# key is visible, but distances are wrong. The counters are right in both runs. Only a comparison of tokens with a run
# that has no cache finds these bugs; keep it as a test.

# %% [markdown] name="say"
# ## Say it in 60 seconds

# %% name="say-it"
this.say()

# %% [markdown] name="now"
# ## What you can answer now
#
# Your cache holds one sequence in one piece of memory. Lesson 03 asks why a decode step is slow although it computes so
# little; lesson 07 cuts the memory into blocks.

# %% name="questions"
this.questions()
