# %% [markdown] name="why"
# # Lesson 03: roofline, prefill and decode
#
# ## Why an interviewer asks
#
# "How fast can a 70B model decode on eight H100?" has an answer on one line of a whiteboard, and it needs no
# benchmark. The follow-ups test whether you know why:
#
# * Why does a batch of 64 cost almost as little time as a batch of 1? When does that end?
# * Why does prefill care about FLOP/s and decode about bytes per second?
# * Your measurement is twice the prediction. Which of the two is wrong?

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("03")

# %% [markdown] name="idea"
# ## Predict
#
# The whole theory: a piece of work moves some **bytes** and does some **FLOP**. It takes at least as long as the
# slower of the two. FLOP per byte is its **intensity**. The **ridge** of a machine is its FLOP/s divided by its bytes
# per second: below it memory is the limit, above it arithmetic (Williams, Waterman and Patterson, 2009).

# %% name="data-sheet"
from engine.sim.hardware import get_hardware
from engine.sim.models import get_model

h100, llama = get_hardware("h100"), get_model("llama-3.1-70b")
print(f"H100: {h100.bytes_per_s / 1e9:,.0f} GB/s, {h100.peak('bfloat16') / 1e12:,.1f} TFLOP/s dense in bf16")
print(
    f"{llama.name}: {llama.num_params / 1e9:.1f} billion parameters, {llama.embedding_params / 2e9:.1f} of them a table"
)
print("from which each token looks up one row, and as many in the output head")

# %% name="predict-floor"
this.predict(
    "decode-floor",
    ...,
    question="Llama 3.1 70B in bf16, spread over 8 H100 without any loss, one request with a short context. "
    "How many milliseconds does a token take at least?",
    unit="ms",
)

# %% name="predict-batch"
this.predict(
    "batch-64",
    ...,
    question="The same with 64 requests that have 1,000 tokens of context each. By what factor does a step get longer?",
    unit="x",
)

# %% name="predict-rows"
this.predict(
    "rows-256",
    ...,
    question="This computer, fp32: a 4096 x 4096 matrix times 256 rows at once. "
    "How many times as long as times one row does it take?",
    unit="x",
)

# %% [markdown] name="first-piece"
# ## First piece: intensity
#
# **03.1** Intensity of a matrix product. Count all three operands; then you see when the rule of thumb (FLOP over bytes
# of the weights) holds, and when it does not.


# %% name="03.1" tags=["exercise"]
# exercise 03.1
def intensity(rows: int, inputs: int, outputs: int, bytes_per_value: float) -> float:
    """Return the FLOP per byte of x @ W.T, with x [rows, inputs] and W [outputs, inputs].

    A multiplication and an addition are two FLOP. x and W are read once, the result is written once, and every number
    takes bytes_per_value.
    """
    raise NotImplementedError("03.1: FLOP of the product over the bytes of x, W and the result")


# %% name="check-03.1"
this.check("03.1")

# %% [markdown] name="run"
# ## Run it
#
# First the machine under your hands. Three rates are its roofline: reading a large tensor (memory), reading one as
# small as the weights of `shop` (that may be a cache), and multiplying. They change while you work: other processes,
# turbo clocks, a neighbour in the cloud. So `roofs` is a function, and each measurement below gets the roofs of its
# own moment.

# %% name="measure-roofs"
from time import perf_counter

import torch

from kernels import ops

measure = this.piece("01.2")
repeats = 5 if this.quick else 9
large, small = torch.ones(128 * 2**18), torch.ones(get_model("shop").common_params + 2048 * 256)
weights = {size: ops.pack_weight(torch.randn(size, size)) for size in (1024, 4096)}


def product(rows, size):
    """Return seconds (median, low, high) of one product with a size x size matrix in fp32."""
    x = torch.randn(rows, size)
    with torch.inference_mode():
        return measure(lambda: ops.linear(x, weights[size]), perf_counter, 2, repeats)


def roofs():
    """Return bytes/s of memory, bytes/s of the cache, and FLOP/s, as they are now."""
    memory, cache = (4 * len(x) / measure(x.sum, perf_counter, 2, repeats)["median"] for x in (large, small))
    return memory, cache, 2 * 64 * 1024**2 / product(64, 1024)["median"]


# %% name="measure-products" tags=["varies"]
row_counts = [1, 4, 16, 64, 256]
products = {(rows, size): product(rows, size) for size in (1024, 4096) for rows in row_counts}
rates = {key: 2 * key[0] * key[1] ** 2 / found["median"] for key, found in products.items()}
for (rows, size), found in products.items():
    print(
        f"{size} x {size}, {rows:3} rows: {1e3 * found['median']:8.2f} ms "
        f"({1e3 * found['low']:.2f} to {1e3 * found['high']:.2f}), {rates[rows, size] / 1e9:6.1f} GFLOP/s"
    )
memory, cache, peak = roofs()
memory, peak = max(memory, 2 * rates[1, 4096]), max(peak, *rates.values())  # a roof is the best rate seen
print(
    f"reads {4 * len(large) / 1e6:.0f} MB at {memory / 1e9:.1f} GB/s, "
    f"{4 * len(small) / 1e6:.0f} MB at {cache / 1e9:.1f} GB/s"
)

# %% name="reveal-rows" tags=["varies"]
factor = products[256, 4096]["median"] / products[1, 4096]["median"]
this.reveal("rows-256", round(factor, 1))
print(f"A row alone costs {256 / factor:.0f} times as much as a row among 256.")
this.record(rows_256=factor)
if not this.quick:
    this.holds("256 rows are near the flat roof", rates[256, 4096] > 0.5 * peak)
    this.holds("one row is on the slope", rates[1, 4096] < 0.3 * peak)
    few = products[4, 4096]["median"] / products[1, 4096]["median"]
    this.holds("along the slope a batch costs little time", few < 2)

# %% [markdown] name="engine-run"
# Now the engine with the model `shop`. A prompt of several hundred tokens is one pass with many rows; a decode step
# has one row per request. We subtract a run of one token from a run of many, so that the prompt cancels out. The
# prompts stay in the prefix cache; new ones are drawn for the prefill.

# %% name="measure-engine"
from random import Random
from statistics import quantiles

from engine import LLM, SamplingParams

llm = LLM("shop", max_num_batched_tokens=2048, num_gpu_blocks_override=1024, max_num_seqs=32)
rng = Random(3)


def seconds_of(prompts, num_tokens):
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    began = perf_counter()
    llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return perf_counter() - began


def draw(batch, length):
    return [[rng.randrange(10, 2000) for _ in range(length)] for _ in range(batch)]


# %% name="decode-seconds"
def decode_seconds(batch, context, num_tokens=24):
    """Return the quartiles of a decode step's seconds; `context` counts prompt and half of the tokens."""
    prompts = draw(batch, context - num_tokens // 2)
    seconds_of(prompts, num_tokens)  # warm up, and fill the prefix cache
    times = [
        seconds_of(prompts, 1 + num_tokens) - seconds_of(prompts, 1) for _ in range(max(3, repeats // 2))
    ]
    return [seconds / num_tokens for seconds in quantiles(times, n=4, method="inclusive")]


# %% name="engine-steps" tags=["varies"]
prompt_len = 512
for _ in range(2):
    seconds_of(draw(1, prompt_len), 1)
prefill_times = [seconds_of(draw(1, prompt_len), 1) for _ in range(repeats)]
prefill = quantiles(prefill_times, n=4, method="inclusive")
batches, context = [1, 4, 16] if this.quick else [1, 2, 4, 8, 16, 32], 64
decode, roofs_then = {}, {}
for batch in batches:
    decode[batch], roofs_then[batch] = decode_seconds(batch, context), roofs()
print(
    f"prefill of {prompt_len} tokens: {1e3 * prefill[1]:.1f} ms ({1e3 * prefill[0]:.1f} to {1e3 * prefill[2]:.1f})"
)
for batch, (low, middle, high) in decode.items():
    print(
        f"decode, batch {batch:2}: {1e3 * middle:6.2f} ms per step ({1e3 * low:.2f} to {1e3 * high:.2f}), "
        f"{1e3 * middle / batch:.2f} ms per token"
    )

# %% [markdown] name="plot"
# ## Plot
#
# A dot's place needs its bytes and FLOP: counted, not measured (exercise 03.2 is that count; for the prompt we ask
# the simulator, which counts the pairs of causal attention, too). Its height is FLOP over measured seconds.

# %% name="count-engine-work" tags=["varies"]
from dataclasses import asdict

from engine.sim.cost import CostModel, StepLoad
from engine.sim.memory import Deployment

decode_work, predict_tpot = this.piece("03.2")
shop = asdict(get_model("shop"))
cost = CostModel(Deployment(get_model("shop"), get_hardware("cpu"), dtype="float32"))
pairs = prompt_len * (prompt_len + 1) // 2
load = StepLoad(1, prompt_len, 1, prefill_pairs=pairs, prefill_context=prompt_len)
weight_bytes, flops = cost.bytes_and_flops(load)
dots = {"prefill": ((flops + cost.attention_work(load)[1]) / weight_bytes, flops / prefill[1])}
for batch, (_, middle, _) in decode.items():
    moved, flops = (
        sum(column) for column in zip(*decode_work(shop, batch, context, 4).values(), strict=True)
    )
    dots[f"decode {batch}"] = (flops / moved, flops / middle)
for name, (intensity_here, rate) in dots.items():
    print(f"{name:9}: {intensity_here:7.2f} FLOP/byte, {rate / 1e9:6.2f} GFLOP/s")
this.record(decode_intensity=dots["decode 1"][0], prefill_intensity=dots["prefill"][0])
if not this.quick:
    roof = max(memory, cache)
    below = [rate < min(roof * place, peak) for name, (place, rate) in dots.items() if name != "prefill"]
    this.holds("the decode dots of shop stay below their roof", all(below))

# %% name="plot-roofline" tags=["varies"]
import numpy as np

from lessons.course.plots import COLOURS, figure

intensity = this.piece("03.1")
drawing, axes = figure(
    xlabel="FLOP per byte", ylabel="GFLOP/s", title="This machine's roofline", xscale="log", yscale="log"
)
x = np.logspace(-1, 3, 200)
for rate, name, style in ((memory, "memory", "-"), (cache, "cache", "--")):
    axes.plot(
        x, np.minimum(rate * x, peak) / 1e9, style, color=COLOURS["black"], marker="", label=f"roof: {name}"
    )
for size, colour, marker in ((4096, "blue", "s"), (1024, "sky", "D")):
    places = [intensity(rows, size, size, 4) for rows in row_counts]
    heights = [rates[rows, size] / 1e9 for rows in row_counts]
    axes.plot(places, heights, marker, color=COLOURS[colour], label=f"{size} x {size}, 1 to 256 rows")
for name, (place, rate) in dots.items():
    colour = "vermillion" if name == "prefill" else "green"
    label = name if name in ("prefill", "decode 1") else None
    axes.plot(place, rate / 1e9, "o", color=COLOURS[colour], label=label and f"shop: {name.split()[0]}")
axes.set_ylim(0.3, 3 * peak / 1e9)
axes.legend(fontsize=7)
this.plot(drawing)

# %% [markdown] name="read-the-plot"
# One row sits on the slope, 256 rows near the flat roof: a batch moves the dot to the right along the slope, and only
# then does it cost time. `shop` shows three more things. Its weights are small enough for a cache, so its dots may
# lie above the memory's line: a roof belongs to *one* memory. Its decode dots stay below their roof, because a step
# also costs time that moves no bytes (Python, launching). And dots above a roof that should hold them mean that the
# roof was measured badly: noise makes roofs too low as well.

# %% [markdown] name="explore"
# ## Explore
#
# Data-sheet roofs of real GPUs, dots from the engine's cost model: the matrices and the attention of one step. With
# one token per request the step decodes, with more it reads prompts. Find the batch at which decode reaches the
# ridge. Then find a setting in which no batch helps the attention dot. (A 70B model in bf16 does not fit on one H100,
# and the picture says so. Choose a narrower type.)

# %% name="draw-step"
from quizzes.experiments import BadArguments
from quizzes.experiments.running import run_here


def place_step(model, gpu, dtype, requests, tokens_each, context):
    settings = dict(model=model, hardware=gpu, dtype=dtype, rows=requests, tokens_per_row=tokens_each)
    try:
        found = run_here("performance.roofline", {**settings, "context": context})
    except BadArguments as error:  # this model does not fit on this device
        return None, str(error).partition(": ")[2]
    rate = get_hardware(gpu).bytes_per_s / 1e12
    top = found["ridge"] * rate
    title = f"{model} on {gpu}: TFLOP/s"
    drawing, axes = figure(xscale="log", yscale="log", xlabel="FLOP per byte", title=title)
    axes.plot([0.1, found["ridge"], 1e5], [0.1 * rate, top, top], color=COLOURS["black"], marker="")
    for key, name, style in (("intensity", "matrices", "o"), ("attention_intensity", "attention", "s")):
        axes.plot(found[key], min(found[key] * rate, top), style, markersize=9, label=name)
    axes.legend(loc="lower right")
    return drawing, (
        f"matrices {found['intensity']:,.1f} FLOP/byte, ridge {found['ridge']:,.0f}: limited by {found['bound']}. "
        f"Attention {found['attention_intensity']:,.1f}.\nA step takes at least {found['step_ms']:.2f} ms and gives "
        f"{found['tokens_per_s']:,.0f} tokens/s; MFU {found['mfu']:.1%}, MBU {found['mbu']:.0%}."
    )


# %% name="explore-step"
this.explore(
    "roofline",
    place_step,
    model=["llama-3.1-8b", "llama-3.1-70b"],
    gpu=["h100", "h200", "a100-80", "b200"],
    dtype=["bfloat16", "fp8", "int4"],
    requests=(1, 512, 1),
    tokens_each=(1, 4096, 1),
    context=(0, 32768, 1000),
)
ends = [
    run_here("performance.roofline", {"model": "llama-3.1-8b", "rows": rows, "context": 100})
    for rows in (1, 512)
]
this.holds(
    "a batch in the picture reaches the ridge", ends[0]["intensity"] < ends[0]["ridge"] < ends[1]["intensity"]
)
this.holds("no batch helps attention", ends[0]["attention_intensity"] == ends[1]["attention_intensity"])
this.holds("70B in bf16 does not fit", place_step("llama-3.1-70b", "h100", "bfloat16", 1, 1, 1000)[0] is None)

# %% [markdown] name="build"
# ## Build
#
# **03.2** The prediction itself, in two functions. `decode_work` counts a decode step from the model's config,
# exactly: matrices are read once for the whole batch, KV once *per request*. `predict_tpot` turns bytes and FLOP into
# the least time. Matrices and attention run one after the other, so each has its own place on the roofline.

# %% name="03.2" tags=["exercise"]
# exercise 03.2
from collections.abc import Mapping


def decode_work(
    shape: Mapping[str, int], batch: int, context: int, bytes_per_value: float
) -> dict[str, tuple[float, float]]:
    """Return {"matrices": (bytes, FLOP), "attention": (bytes, FLOP)} of a step in which `batch` requests decode.

    shape: num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size.
    matrices: q, k, v, o, gate, up and down in each layer, and the output head; each weight is read once per step.
    attention: each request reads the keys and values of its `context` tokens, the newest included.
    Norms, activations and the row looked up in the embedding are left out: well below 1 %.
    """
    raise NotImplementedError("03.2: count the weights and the KV, each as bytes and as FLOP")


def predict_tpot(
    work: Mapping[str, tuple[float, float]], bytes_per_s: float, flops_per_s: float, num_devices: int = 1
) -> float:
    """Return the least seconds of a step.

    Each part takes the longer of its two times, moving or computing. The parts run one after the other. The devices
    share the work of each part evenly; their communication is left out.
    """
    raise NotImplementedError("03.2: add up the longer time of each part, divide by the devices")


# %% name="check-03.2"
this.check("03.2")

# %% name="reveal-llama"
decode_work, predict_tpot = this.piece("03.2")
device = (h100.bytes_per_s, h100.peak("bfloat16"), 8)
one = predict_tpot(decode_work(asdict(llama), 1, 1, 2), *device)
many = predict_tpot(decode_work(asdict(llama), 64, 1000, 2), *device)
this.reveal("decode-floor", round(1e3 * one, 2))
this.reveal("batch-64", round(many / one, 2))
print(
    f"64 requests: {64 / many:,.0f} tokens/s instead of {1 / one:,.0f}; each user still gets {1 / many:,.0f}."
)
this.record(floor_ms=1e3 * one, batch_64=many / one)
this.holds("a batch of 64 costs almost as little time as a batch of 1", many < 1.25 * one)

# %% [markdown] name="floor-or-estimate"
# That is a floor: nothing on this hardware can be faster. A real step is slower. The simulator's cost model starts
# from the same bytes, multiplies by the shares of the peak that good kernels reach, and adds all-reduces and
# overhead.

# %% name="estimate"
deployment = Deployment(llama, h100, tp=8)
for batch in (1, 64):
    load = StepLoad(num_rows=batch, num_tokens=batch, num_sampled=batch, decode_context=batch * 1000)
    estimate = CostModel(deployment).parts(load)
    floor = predict_tpot(decode_work(asdict(llama), batch, 1000, 2), *device)
    this.holds("a real step is slower than the floor", sum(estimate.values()) > floor)
    parts = ", ".join(f"{name} {1e3 * seconds:.2f}" for name, seconds in estimate.items())
    print(
        f"batch {batch:2}: at least {1e3 * floor:.2f} ms, estimate {1e3 * sum(estimate.values()):.2f} ms ({parts})"
    )

# %% name="check-on-this-machine" tags=["varies"]
factors = []
for batch, (low, middle, high) in decode.items():
    work, (_, fast, flops_per_s) = decode_work(shop, batch, context, 4), roofs_then[batch]
    predicted = predict_tpot(work, fast, flops_per_s)
    factors.append(middle / predicted)
    print(
        f"shop here, batch {batch:2}: at least {1e3 * predicted:5.2f} ms ({fast / 1e9:.0f} GB/s, "
        f"{flops_per_s / 1e9:.0f} GFLOP/s), measured {1e3 * middle:5.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f}): "
        f"{middle / predicted:.1f} times"
    )
if not this.quick:
    this.holds("a factor of two or three is normal", 1.5 < np.median(factors) < 4)

# %% [markdown] name="judge"
# A factor of two or three between floor and measurement is normal; a factor of ten has a reason that you can find. At
# batch 1 the usual one is overhead: a step of a tiny model is shorter than the Python around it. With more rows it is
# attention and products of small matrices, which stay below the peak. A measurement *below* the floor means that a
# rate is wrong, for example that the weights came from a faster memory than the one you measured.
#
# **03.3** Two borders that decide about batching: where the matrices start to cost time, and where KV, which no batch
# shares, becomes the larger read.

# %% name="03.3" tags=["exercise"]
# exercise 03.3
from collections.abc import Mapping
from math import ceil


def critical_batch(bytes_per_value: float, bytes_per_s: float, flops_per_s: float) -> int:
    """Return the smallest batch at which the matrices of a decode step compute at least as long as they are read."""
    raise NotImplementedError("03.3: solve FLOP of a weight / FLOP per second = bytes / bytes per second")


def crossover_batch(work_of_one: Mapping[str, tuple[float, float]]) -> int:
    """Return the smallest batch at which a step reads at least as many bytes of KV as of weights.

    work_of_one: the result of decode_work for a batch of 1 at the context in question.
    """
    raise NotImplementedError("03.3: how often does one request's KV fit into the weights?")


# %% name="check-03.3"
this.check("03.3")

# %% name="borders"
critical_batch, crossover_batch = this.piece("03.3")
print(f"matrices of any dense model, H100, bf16: compute-bound from batch {critical_batch(2, *device[:2])}")
for length in (1_000, 8_000, 32_000):
    border = crossover_batch(decode_work(asdict(llama), 1, length, 2))
    print(f"Llama 3.1 70B at {length:6,} tokens of context: more KV than weights from batch {border}")

# %% [markdown] name="break"
# ## Break it: leave out the KV
#
# "Decode reads the weights, so the step takes weights over bandwidth." True at short contexts. Here the same
# prediction with and without the attention part, beside measured steps of the engine, while the context grows.

# %% name="run-contexts" tags=["varies"]
batch = 4 if this.quick else 8
contexts = [64, 700] if this.quick else [64, 400, 800, 1600]
long_steps, without, cached, uncached = {}, [], [], []
for length in contexts:
    long_steps[length] = low, middle, high = decode_seconds(batch, length)
    slow, fast, flops_per_s = roofs()
    work = decode_work(shop, batch, length, 4)
    without.append(1e3 * predict_tpot({"matrices": work["matrices"]}, fast, flops_per_s))
    cached.append(1e3 * predict_tpot(work, fast, flops_per_s))
    uncached.append(1e3 * predict_tpot(work, slow, flops_per_s))
    print(
        f"context {length:5}: weights {work['matrices'][0] / 1e6:4.1f} MB, KV {work['attention'][0] / 1e6:5.1f} MB; "
        f"measured {1e3 * middle:5.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f})\n"
        f"    at least {cached[-1]:.2f} ms from cache, {uncached[-1]:.2f} ms from memory; "
        f"without KV {without[-1]:.2f} ms"
    )
grown = long_steps[contexts[-1]][1] / long_steps[contexts[0]][1]
this.record(grown=grown, kv_bytes=decode_work(shop, batch, contexts[-1], 4)["attention"][0])
first = decode_work(shop, batch, contexts[0], 4)
this.holds("the weights are the step at short contexts", first["attention"][0] < 0.2 * first["matrices"][0])
if not this.quick:
    this.holds("the step grows with the context", grown > 1.5)
    this.holds("the measurement lies above the band", long_steps[contexts[-1]][1] > 1e-3 * uncached[-1])

# %% name="plot-contexts" tags=["varies"]
drawing, axes = figure(
    xlabel="tokens of context", ylabel="ms per step", title=f"{batch} requests decode; the context grows"
)
low, middle, high = (1e3 * np.array(column) for column in zip(*long_steps.values(), strict=True))
axes.fill_between(contexts, low, high, color=COLOURS["green"], alpha=0.25, linewidth=0)
axes.plot(contexts, middle, "o-", color=COLOURS["green"], label="measured, middle half")
axes.fill_between(
    contexts, cached, uncached, color=COLOURS["sky"], alpha=0.3, linewidth=0, label="cache to memory"
)
axes.plot(contexts, uncached, "s-", color=COLOURS["blue"], label="predicted, from memory")
axes.plot(contexts, without, "^--", color=COLOURS["vermillion"], label="predicted without KV, from cache")
axes.set_ylim(0)
axes.legend()
this.plot(drawing)

# %% name="break-on-a-gpu"
work = decode_work(asdict(llama), 64, 32_000, 2)
wrong, right = predict_tpot({"matrices": work["matrices"]}, *device), predict_tpot(work, *device)
print("Llama 3.1 70B, 8 H100, 64 requests at 32,000 tokens")
print(f"without KV: {1e3 * wrong:.1f} ms per step; with KV: {1e3 * right:.1f} ms")
print(f"weights {work['matrices'][0] / 1e9:.0f} GB, KV {work['attention'][0] / 1e9:.0f} GB")
this.holds("eight cards of 80 GB cannot hold that KV", work["attention"][0] > 8 * 80e9)

# %% [markdown] name="break-lesson"
# The weights stay the same and the step does not: it reads the KV, too, and with it the working set may outgrow the
# cache (the upper edge of the band). What lies between the band and the measurement is attention below both roofs: a
# floor says which bytes must move, not how well a kernel moves them.
#
# On GPUs the figure without KV is the answer that many candidates give. Notice the last line, too: eight cards of 80
# GB cannot hold that KV at all. Long contexts hit the memory's *size* before its bandwidth, and then the scheduler
# must do something about it (lesson 09).

# %% [markdown] name="say"
# ## Say it in 60 seconds

# %% name="say-it"
this.say()

# %% [markdown] name="questions"
# ## What you can answer now

# %% name="ask"
this.questions()
