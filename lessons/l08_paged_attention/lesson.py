# %% [markdown] name="why"
# # Lesson 08: paged attention, the kernel
#
# ## Why an interviewer asks
#
# In lesson 07 the tokens of a request were scattered over blocks. Attention now has to read them. If you say
# "PagedAttention", expect to be asked:
#
# * Does the kernel copy the blocks together first? What would that cost?
# * How do you compute a softmax when you never see all scores at once?
# * What does the indirection cost, and why do decode kernels split the keys?
#
# You write three versions: one that copies, one that streams, and one that is fast enough to serve with.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("08")

# %% [markdown] name="cache"
# The engine keeps keys and values of one layer in one tensor: `[num_blocks, 2, kv_heads, block_size, head_dim]`. This
# is the real cache of a real run. `shop` reads a long prompt, and we look at what it left in layer 0.

# %% name="run-engine"
import torch

from engine import LLM, SamplingParams
from engine.zoo.corpus import draw_cases

llm = LLM("shop", num_gpu_blocks_override=256, block_size=16)
prompt = max((case.prompt for case in draw_cases(24, seed=8)), key=len)
[answer] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
length = len(answer.prompt_token_ids)

cache = llm.llm_engine.engine_core.executor.worker.runner.kv_cache.kv[:, 0]
print(f"{length} tokens; cache of one layer: {list(cache.shape)}, strides {cache.stride()}")

# %% [markdown] name="predict"
# ## Predict
#
# A decode step computes one query per request. **Gather and attend** copies the request's pages into one dense tensor,
# then calls dense attention on it. **Paged** attention reads each page where it is.

# %% name="predict-bytes"
this.predict(
    "bytes-ratio",
    ...,
    question="Bytes of keys and values read and written: how many times as many as paged attention does gather and "
    "attend move?",
    unit="x",
)

# %% name="predict-rescale"
this.predict(
    "rescales",
    ...,
    question=f"A softmax that sees {length} real scores of one head in blocks of 16: in how many of its "
    f"{-(-length // 16)} blocks does the running maximum rise? (Mean over heads.)",
    unit="blocks",
)

# %% [markdown] name="first-piece"
# ## First piece: gather
#
# **08.1** Gather. The simple half of a paged kernel, and the oracle for the rest.

# %% name="08.1" tags=["exercise"]
# exercise 08.1
import torch
from torch import Tensor


def gather(cache: Tensor, table: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Return the keys and the values of a request's first `length` tokens, each [length, kv_heads, head_dim].

    cache: [num_blocks, 2, kv_heads, block_size, head_dim], keys at 0, values at 1; often a strided view.
    table: block ids in logical order, maybe more than the length needs. length >= 1.
    """
    raise NotImplementedError("08.1: index the blocks, bring slots next to blocks, flatten, cut")


# %% name="check-08.1"
this.check("08.1")

# %% [markdown] name="run"
# ## Run it
#
# A cache that counts. Every access adds the bytes that it reads; what a version writes and reads again is counted by
# hand, since torch does not tell.


# %% name="meter"
class Meter:
    """A cache that counts the bytes which are read from it."""

    def __init__(self, cache):
        self.cache, self.shape, self.read = cache, cache.shape, 0

    def __getitem__(self, index):
        found = self.cache[index]
        self.read += found.nbytes
        return found


gather, decode_attention = this.piece("08.1"), this.piece("08.2")
blocks = list(range(1, -(-length // 16) + 1))  # the first request of a new engine gets these, in order
scale = 32**-0.5

# %% name="real-query" tags=["varies"]
from lessons.given.model import PlainModel, causal_attention

plain, prompt_ids, seen = PlainModel.load("shop"), list(answer.prompt_token_ids), []


def spy(query, keys, values, start):
    seen.append((query, keys))
    return causal_attention(query, keys, values, start)


plain(prompt_ids, attend=spy)
query = seen[0][0][-1]  # the last token's query in layer 0: [heads, head_dim]
found, _ = gather(cache, blocks, length)
print(
    f"keys of the plain model and of the engine's cache differ by at most {(found - seen[0][1]).abs().max():.1e}"
)

# %% name="count-bytes" tags=["varies"]
from torch.nn.functional import scaled_dot_product_attention as sdpa

meter = Meter(cache)
keys, values = gather(meter, blocks, length)
copied = keys.nbytes + values.nbytes
gathered_bytes = meter.read + copied + copied  # read from the cache, write the copy, read the copy
dense = sdpa(query[:, None], keys.transpose(0, 1), values.transpose(0, 1), enable_gqa=True, scale=scale)[:, 0]

meter = Meter(cache)
paged = decode_attention(query, meter, blocks, length, scale)
this.reveal("bytes-ratio", round(gathered_bytes / meter.read, 2))
print(f"gather and attend {gathered_bytes:,} bytes; paged {meter.read:,} bytes")
print(f"largest difference of the two results: {float((dense - paged).abs().max()):.1e}")
this.record(bytes_ratio=gathered_bytes / meter.read, error=float((dense - paged).abs().max()))
this.holds("both read the same", float((dense - paged).abs().max()) < 1e-4)

# %% [markdown] name="bound"
# Decode attention does few operations per byte: each key is used by the few query heads that share it. So bytes are
# time. On a GPU the copy would also need memory for a dense tensor, which was the point of paging to avoid.

# %% name="count-rescales"
scores = scale * torch.einsum("hd,khd->hk", query, keys.repeat_interleave(2, dim=1))
maxima = torch.stack([part.max(1).values for part in scores.split(16, dim=1)], dim=1)
running = maxima.cummax(dim=1).values
rises = (running[:, 1:] > running[:, :-1]).sum(1).float()
this.reveal("rescales", round(float(rises.mean()), 1))
print(f"by head: {rises.int().tolist()}")
this.holds("a kernel skips nearly all of the rescaling", rises.mean() < 0.15 * running.shape[1])

# %% [markdown] name="harmonic"
# For scores in random order the expected number is 1/2 + 1/3 + ... + 1/n over n blocks, which grows like the logarithm
# of n. A kernel that rescales only when the maximum rose skips nearly all of that work.

# %% [markdown] name="plot"
# ## Plot
#
# Now time. A batch of decode rows through three backends of the engine, one layer: `reference` (plain torch, row by
# row), `sdpa` (gathers pages, then torch's dense attention), `cpu` (C++, reads pages in place). And yours.

# %% name="make-batch"
from itertools import accumulate
from random import Random

from engine.attention.backend import AttentionMetadata, get_backend


def make_batch(lengths, block_size=16, kv_heads=4, head_dim=32):
    """Return a cache, queries and metadata of decode rows with these lengths, in scattered blocks."""
    counts = [-(-n // block_size) for n in lengths]
    cache = torch.randn(sum(counts) + 1, 2, kv_heads, block_size, head_dim)
    free = Random(8).sample(range(1, sum(counts) + 1), sum(counts))
    table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
    for row, (end, count) in enumerate(zip(accumulate(counts), counts, strict=True)):
        table[row, :count] = torch.tensor(free[end - count : end])
    starts, rows = list(range(len(lengths) + 1)), len(lengths)
    ints = {"query_start_loc": starts, "seq_lens": lengths}
    metadata = AttentionMetadata(
        **{name: torch.tensor(values, dtype=torch.int32) for name, values in ints.items()},
        **{f"{name}_cpu": values for name, values in ints.items()},
        **{"block_table": table, "max_query_len": 1, "num_decode_rows": rows, "max_seq_len": max(lengths)},
        slot_mapping=torch.full((rows,), -1),
    )
    return cache, torch.randn(rows, 2 * kv_heads, head_dim), metadata


# %% name="time-backends"
from time import perf_counter

paged_attention = this.piece("08.3")
ours = {name: get_backend(name, "cpu", torch.float32) for name in ("reference", "sdpa", "cpu")}


def milliseconds(run, repeats=3 if this.quick else 7):
    times = []
    for _ in range(repeats + 1):
        began = perf_counter()
        run()
        times.append(1e3 * (perf_counter() - began))
    return sorted(times[1:])[repeats // 2]


def calls(cache, query, metadata):
    """Return a function without arguments for each way to compute this batch."""
    for backend in ours.values():
        backend.build(metadata)
    found = {
        name: lambda b=backend: b.attend(query, cache, metadata, scale=scale, sliding_window=None)
        for name, backend in ours.items()
    }
    lists = metadata.query_start_loc_cpu, metadata.seq_lens_cpu
    return {**found, "08.3": lambda: paged_attention(query, cache, *lists, metadata.block_table, scale)}


# %% name="measure" tags=["varies"]
contexts = [64, 256, 1024] if this.quick else [64, 128, 256, 512, 1024, 2048]
times = {name: [] for name in [*ours, "08.3"]}
for context in contexts:
    lengths = [Random(row).randrange(context // 2, context + 1) for row in range(32)]
    batch = make_batch(lengths)
    results = {name: (call(), milliseconds(call)) for name, call in calls(*batch).items()}
    for name, (found, spent) in results.items():
        assert torch.allclose(found, results["reference"][0], atol=1e-4), name
        times[name].append(spent)
print("32 rows, one layer, ms\n" + "context   " + "".join(f"{name:>11}" for name in times))
for index, context in enumerate(contexts):
    print(f"{context:7}   " + "".join(f"{values[index]:11.2f}" for values in times.values()))
if not this.quick:
    long = {name: values[-1] / values[-2] for name, values in times.items()}
    by_bytes = contexts[0] / contexts[-1]  # what the shortest context would cost, of the longest
    calls_cost = all(times[name][0] > 2 * by_bytes * times[name][-1] for name in ("reference", "08.3"))
    this.holds("at short contexts the calls of two forms cost more than the bytes", calls_cost)
    this.holds(
        "at long contexts all lines follow the bytes", all(1.4 < ratio < 2.6 for ratio in long.values())
    )
    this.holds("the copy is the distance", times["sdpa"][-1] > 2 * times["cpu"][-1])

# %% name="plot-times" tags=["varies"]
from lessons.course.plots import COLOURS, figure

drawing, axes = figure(xlabel="context (tokens)", ylabel="ms", title="32 decode rows, one layer")
for name, values in times.items():
    axes.plot(contexts, values, label=name)
axes.set_xscale("log", base=2)
axes.set_yscale("log")
axes.set_xticks(contexts, [str(context) for context in contexts])
axes.legend()
this.plot(drawing)

# %% [markdown] name="read-times"
# At short contexts the calls of `reference` and 08.3 cost more than the bytes: Python and the dispatch of small
# operations. At long contexts all lines follow the bytes, and the distance between `sdpa` and `cpu` is the copy. `sdpa`
# plans its gathers once for all layers of a step; your function plans in every call.

# %% [markdown] name="explore"
# ## Explore: which pages a step reads
#
# A pool of 1,024 slots with three requests. A and B share a prompt of 96 tokens, as after a prefix hit. Darker pages
# are read more often in one decode step.

# %% name="draw-pages"
import numpy as np

CONTEXTS = {"A": 1.0, "B": 0.7, "C": 0.4}


def visited_pages(block_size, context, shared):
    free = Random(3).sample(range(1024 // block_size), 1024 // block_size)
    prefix = [free.pop() for _ in range(96 // block_size)] if shared else []
    visits, tokens = np.zeros(1024 // block_size, dtype=int), 0
    for name, part in CONTEXTS.items():
        seq_len = max(1, round(context * part))
        num_blocks = -(-seq_len // block_size)
        own = prefix[:num_blocks] if name in "AB" else []
        visits[own + [free.pop() for _ in range(num_blocks - len(own))]] += 1
        tokens += seq_len
    token_bytes = 2 * 4 * 32 * 4
    return draw_visits(visits, block_size), (
        f"{(visits > 0).sum()} pages hold {tokens:,} tokens as the rows see them; {visits.sum()} page reads\n"
        f"{tokens * token_bytes:,} bytes of keys and values per layer, "
        f"{(visits.sum() * block_size - tokens) * token_bytes:,} more if a kernel reads whole last pages\n"
        f"block tables: {visits.sum() * 4:,} bytes"
    )


# %% name="draw-visits"
from matplotlib.colors import LinearSegmentedColormap

REDS = LinearSegmentedColormap.from_list("visits", ["#EEEEEE", COLOURS["sky"], COLOURS["blue"]])


def draw_visits(visits, block_size):
    drawing, axes = figure(
        xlabel="slot in the row", ylabel="row of 64 slots", title="reads of each page in one step"
    )
    picture = np.repeat(visits, block_size).reshape(-1, 64)
    image = axes.imshow(picture, cmap=REDS, vmin=0, vmax=2, aspect="auto", interpolation="nearest")
    for edge in range(0, 64, block_size):
        axes.axvline(edge - 0.5, color="white", linewidth=1)
    for row in range(16):
        axes.axhline(row - 0.5, color="white", linewidth=1)
    axes.grid(False)
    drawing.colorbar(image, ax=axes, ticks=[0, 1, 2], label="reads")
    return drawing


# %% name="explore-pages"
this.explore("visited-pages", visited_pages, block_size=[16, 8, 32], context=(1, 400, 200), shared=True)
words = [visited_pages(16, 200, shared)[1].split() for shared in (True, False)]
pages, reads = ([int(line[at]) for line in words] for at in (0, 10))
this.holds("sharing saves pages, not reads", pages[0] < pages[1] and reads[0] == reads[1])

# %% [markdown] name="explore-questions"
# Sharing saves pages, not reads: A and B read the shared pages both. (Kernels for shared prefixes, such as cascade
# attention, read them once for all rows.) And how large is the block table beside the bytes that it points to?

# %% [markdown] name="build"
# ## Build
#
# **08.2** The online softmax (Milakov and Gimelshein 2018). Per head keep the maximum *m* so far, the sum *s* of
# exp(score - m), and the output *o*, the sum of exp(score - m) times the value. A block with a larger maximum *m'*
# makes everything so far too large by the same factor, exp(m - m'). Multiply, add the block, go on. Divide at the end.

# %% name="08.2" tags=["exercise"]
# exercise 08.2
import torch
from torch import Tensor


def decode_attention(query: Tensor, cache: Tensor, table: list[int], length: int, scale: float) -> Tensor:
    """Return softmax(scale * query @ keys) @ values of one query over `length` tokens: [heads, head_dim].

    query: [heads, head_dim]; head h reads kv head h // (heads / kv_heads). cache, table: as in `gather`.
    Reads cache[block] (or a part of it) for one block after the other, each number at most once: running maximum,
    sum and output are all that lives from block to block. Computes in fp32, returns query's dtype.
    """
    raise NotImplementedError("08.2: maximum, sum and output, block after block")


# %% name="check-08.2"
this.check("08.2")

# %% [markdown] name="batch"
# **08.3** A batch, fast. Decode rows, prompts and chunks come packed, as in the engine: row r owns the queries
# `query_start_loc[r]` to `query_start_loc[r + 1]`, and they are the *last* of its `seq_lens[r]` tokens.
#
# Streaming block by block in Python would cost a call per block. In torch the fast form is one copy: each page once,
# in the order that SDPA wants, into memory that the next row uses again. Decode rows then need no mask; prompts go in
# tiles. This function serves the model in `prep mine chat`.

# %% name="08.3" tags=["exercise"]
# exercise 08.3
import torch
from torch import Tensor


def paged_attention(
    query: Tensor,
    cache: Tensor,
    query_start_loc: list[int],
    seq_lens: list[int],
    block_table: Tensor,
    scale: float,
) -> Tensor:
    """Return causal attention of a batch of ragged rows: [T, heads, head_dim], like query.

    query: [T, heads, head_dim]; row r owns tokens query_start_loc[r] to query_start_loc[r + 1] - 1, the last of its
        seq_lens[r] tokens. Their keys and values are in the cache already.
    cache: as in `gather`, in query's dtype, finite in every slot; one head's part of a block is contiguous.
    block_table: int [R, max_blocks], any id of the cache behind a row's last block.
    """
    raise NotImplementedError("08.3: copy each page once, then SDPA: decode without a mask, prompts in tiles")


# %% name="check-08.3"
this.check("08.3")

# %% [markdown] name="doors"
# ### Closer to the machine
#
# The same loop in C++ needs no copy and no Python. `kernels/` compiles and checks it in the form you like:
#
# * **C++**: the cell below, or `prep lab new cpp-paged-decode`: once its checks pass, your engine decodes with it.
# * **Triton**, in its interpreter: `kernels/triton_ops/split_kv_decode.py`; `prep kernels explain paged_decode`
#   prints it with registers and occupancy.
# * **CUDA C++**, on the host shim: `kernels/cuda/paged_decode.cu`; the same commands.

# %% name="cpp-source"
CPP = r"""
#include <cmath>
#include <vector>
extern "C" void decode(const float* query, const float* cache, const int* table, float* out, long heads,
                       long kv_heads, long head_dim, long block_size, long length, float scale) {
    const long page = block_size * head_dim, group = heads / kv_heads;
    for (long head = 0; head < heads; ++head) {
        const float* q = query + head * head_dim;
        std::vector<float> sum(head_dim, 0.0f);
        float top = -INFINITY, total = 0.0f;
        for (long at = 0; at < length; ++at) {  // one token at a time: maximum, total and sum, as in 08.2
            const float* key = cache + (2 * table[at / block_size] * kv_heads + head / group) * page
                             + at % block_size * head_dim;
            const float* value = key + kv_heads * page;
            float score = 0.0f;
            for (long d = 0; d < head_dim; ++d) score += q[d] * key[d];
            score *= scale;
            const float next = std::fmax(top, score), shrink = std::exp(top - next), w = std::exp(score - next);
            for (long d = 0; d < head_dim; ++d) sum[d] = sum[d] * shrink + w * value[d];
            total = total * shrink + w, top = next;
        }
        for (long d = 0; d < head_dim; ++d) out[head * head_dim + d] = sum[d] / total;
    }
}"""

# %% name="cpp-build"
import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path


def build(source):
    """Compile with most of the flags of the engine's kernels; return the function, or None without a compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="prep-lesson-08-"))
    (folder / "decode.cpp").write_text(source)
    flags = ["-std=c++17", "-O3", "-march=native", "-fPIC", "-fno-math-errno", "-shared"]
    subprocess.run([compiler, *flags, "decode.cpp", "-o", "decode.so"], cwd=folder, check=True)
    function = ctypes.CDLL(str(folder / "decode.so")).decode
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long] * 5 + [ctypes.c_float]
    return function


# %% name="cpp-run" tags=["varies"]
decode_attention = this.piece("08.2")


def decode_in_cpp(query, cache, table, length, scale):
    out, ids = torch.empty_like(query), torch.tensor(table, dtype=torch.int32)
    sizes = query.shape[0], cache.shape[2], cache.shape[4], cache.shape[3], length
    pointers = (tensor.data_ptr() for tensor in (query, cache, ids, out))
    compiled(*pointers, *sizes, scale)
    return out


compiled = build(CPP)
if compiled is None:
    print("no C++ compiler (g++ or clang++) is installed")
else:
    layer = cache.contiguous()
    error = (decode_in_cpp(query, layer, blocks, length, scale) - paged).abs().max()
    print(f"largest difference from 08.2: {float(error):.1e}")
    print(
        f"08.2 in Python {milliseconds(lambda: decode_attention(query, layer, blocks, length, scale)):6.2f} ms"
    )
    print(
        f"08.2 in C++    {milliseconds(lambda: decode_in_cpp(query, layer, blocks, length, scale)):6.2f} ms"
    )

# %% [markdown] name="four-forms"
# And the engine's own forms on one batch. Triton's interpreter changes how the module is loaded, so it runs in a
# process of its own; so can your variant, if you start from one of these files.

# %% name="forms" tags=["varies"]
import os
import sys

from prep_common.child_process import ROOT


def check_form(name):
    """Return the verdict of `prep kernels check` on one form of paged attention, without a GPU."""
    arguments = ["paged_attention", "--backend", name, "--dtype", "float32", "--case", "decode*"]
    done = subprocess.run(
        [sys.executable, "-m", "app.cli.main", "kernels", "check", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if "cases right" in line), lines[-1] if lines else "no answer")


for name in ("cpu", "cuda") if this.quick else ("cpu", "cuda", "triton"):
    print(f"{name:7} {check_form(name)}")

# %% [markdown] name="break"
# ## Break it: forget to rescale
#
# The most common bug of a first online softmax: the maximum rises, and the old sums stay as they are. We generate with
# the plain model of lesson 01. Prompts use dense attention; each new token goes through blocks of 16.

# %% name="predict-broken"
this.predict(
    "same-tokens",
    ...,
    question="shop generates 24 tokens. How many of them are the same without the rescaling?",
    unit="of 24",
)


# %% name="broken-attention"
def online(query, keys, values, rescale):
    """Attention of query [heads, dim] over keys, values [length, kv_heads, dim], 16 tokens at a time."""
    grouped = query.unflatten(0, (keys.shape[1], -1)) / query.shape[1] ** 0.5
    top = torch.full((*grouped.shape[:2], 1), -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(grouped)
    for key, value in zip(keys.split(16), values.split(16), strict=True):
        scores = grouped @ key.permute(1, 2, 0)
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink = (top - new_top).exp() if rescale else 1.0
        weights = (scores - new_top).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ value.transpose(0, 1)
        top = new_top
    return (out / total).flatten(0, 1)


# %% name="generate-broken"
class GrowingCache:
    def __init__(self):
        self.layers = {}

    def append(self, layer, key, value):
        old = self.layers.get(layer, (key[:0], value[:0]))
        self.layers[layer] = torch.cat((old[0], key)), torch.cat((old[1], value))
        return self.layers[layer]


def generate(rescale):
    def attend(query, keys, values, start):
        if len(query) > 1:
            return causal_attention(query, keys, values, start)
        return online(query[0], keys, values, rescale)[None]

    cache = GrowingCache()
    ids = [int(plain(prompt_ids, cache=cache)[-1].argmax())]
    for position in range(len(prompt_ids), len(prompt_ids) + 23):
        ids.append(int(plain(ids[-1:], cache=cache, start=position, attend=attend)[-1].argmax()))
    return ids


# %% name="reveal-broken"
good, bad = generate(True), generate(False)
tokenizer = llm.llm_engine.tokenizer
this.reveal("same-tokens", sum(a == b for a, b in zip(good, bad, strict=True)))
print("rescaled:", repr(tokenizer.decode(good)))
print("not:     ", repr(tokenizer.decode(bad)))
same_as_engine = list(answer.outputs[0].token_ids) == good[: len(answer.outputs[0].token_ids)]
print(f"the rescaled one starts with the engine's tokens: {same_as_engine}")
this.record(same_as_engine=same_as_engine, broken_same=sum(a == b for a, b in zip(good, bad, strict=True)))
this.holds(
    "the rescaled one starts with the engine's tokens, the other does not", same_as_engine and good != bad
)
small = torch.Generator().manual_seed(8)
quiet = [torch.randn(*shape, generator=small) for shape in ((8, 32), (505, 4, 32), (505, 4, 32))]
quiet[0] *= 0.1
error = float((online(*quiet, True) - online(*quiet, False)).abs().max())
print(f"random scores of about 0.1: the bug changes the result by at most {error:.3f}")
this.holds("a test with small random scores would hardly notice", error < 0.02)

# %% [markdown] name="break-lesson"
# A test with small random scores would hardly notice: there the maximum rises by little. That is why your checks use
# scores that rise by a lot, and compare with a definition written in another way.
#
# One more use of the same arithmetic: two *parts* of the keys can be computed apart, each with its own maximum, sum and
# output, and merged by the same rule. This is split-KV (flash-decoding): one long request keeps a whole GPU busy.

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
