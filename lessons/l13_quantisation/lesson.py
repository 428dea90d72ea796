# %% [markdown] name="why"
# # Lesson 13: quantisation
#
# ## Why an interviewer asks
#
# "We serve in int4 and save a factor of four" is two claims about bytes and one about time. Each needs its own
# answer:
#
# * How many bits does a weight take once its scale is counted?
# * Which weights suffer, and how do you notice before a customer does?
# * At which batch size does the saving stop to be a speed-up?
#
# You write a quantiser, run the shipped model on its output, and break int8 with two loud channels.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("13")

# %% [markdown] name="one-group"
# ## Predict
#
# Rounding to a grid needs a step size, the *scale*. A scale for every weight would cost more than it saves; one
# scale for a whole matrix lets the largest weight choose the grid of all others. So a *group* of neighbouring
# columns of a row shares one. Below: eight weights of `shop`, in 4 bits, as the engine's quantiser rounds them.

# %% name="round-one-group"
from engine.quant.rounding import round_to_nearest
from lessons.given.model import PlainModel

model = PlainModel.load("shop")
matrices = {name: w for name, w in model.weights.items() if name.endswith("_proj.weight")}
weight = matrices["model.layers.2.self_attn.q_proj.weight"]
small = round_to_nearest(weight[:1, :8], 8, bits=4, symmetric=True)
print(f"{len(matrices)} matrices, {sum(w.numel() for w in matrices.values()):,} weights")
print("weights ", [round(value, 3) for value in weight[0, :8].tolist()])
print("steps   ", [step - 8 for step in small.steps[0].tolist()], f"times {small.scale.item():.4f}")
print("restored", [round(value, 3) for value in small.restore()[0].tolist()])

# %% name="predict-bits"
this.predict(
    "bits-per-weight",
    ...,
    question="4 bits, groups of 128 columns, one fp16 scale per group. How many bits does a weight take?",
    unit="bits",
)

# %% name="predict-outlier"
this.predict(
    "error-growth",
    ...,
    question="4 bits, groups of 128. In every group one weight becomes 32 times as large. By what factor does the "
    "mean error of the other weights grow?",
    unit="x",
)

# %% name="predict-speed"
this.predict(
    "large-batch-speedup",
    ...,
    question="Llama-3 8B on an H100, weights in int4 instead of bf16, arithmetic in bf16. One step over 2,048 prompt "
    "tokens. By what factor do the linear layers become faster?",
    unit="x",
)

# %% [markdown] name="first-piece"
# ## First piece: a scale per group
#
# **13.1** The heart of it: one scale per group, the nearest step for each weight. Choose the steps for the scale *as
# it is stored*: fp16 has 11 bits, and steps chosen for the exact scale are sometimes not the nearest ones for the
# stored scale. Scales here are max|w| / 7 for 4 bits, so the grid is -7 to 7; formats that use all sixteen values
# (-8 to 7) divide by 7.5 or 8.

# %% name="13.1" tags=["exercise"]
# exercise 13.1
import torch
from torch import Tensor


def quantize(weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    """Round `weight` [out, in] to signed integers, with one scale for each group of columns of a row.

    Returns q, int8 [out, in] with |q| <= 2**(bits - 1) - 1, and scales, fp16 [out, in / group_size]: the largest
    |weight| of the group over the largest |q|, as fp16 stores it. A group whose scale is 0 gets scale 1.
    Raises ValueError if bits is not 2 to 8, or if group_size does not divide `in`.
    """
    raise NotImplementedError("13.1: reshape to groups, compute fp16 scales, round to the nearest step")


def dequantize(q: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """Return the matrix that q and scales stand for, fp32 [out, in]."""
    raise NotImplementedError("13.1: multiply each group by its scale")


# %% name="check-13.1"
this.check("13.1")

# %% [markdown] name="run"
# ## Run it
#
# First the arithmetic: bits, bytes and errors of all matrices of `shop`. The error is that of the weights,
# |restored - w| / |w| over a whole matrix, averaged over the matrices.

# %% name="sweep"
import torch


def error_of(bits: int, group: int) -> float:
    """Mean relative error of the matrices; group 0: one scale per row."""
    found = []
    for w in matrices.values():
        restored = round_to_nearest(w, group or w.shape[1], bits=bits, symmetric=True).restore()
        found.append(float((restored - w).norm() / w.norm()))
    return sum(found) / len(found)


def bits_per_weight(bits: int, group: int) -> float:
    """Bits of all matrices over all weights, fp16 scales included."""
    count = sum(w.numel() for w in matrices.values())
    scales = sum(w.numel() // (group or w.shape[1]) for w in matrices.values())
    return bits + 16 * scales / count


widths, groups = ((2, 4, 8), (32, 128, 0)) if this.quick else ((2, 3, 4, 6, 8), (16, 32, 64, 128, 0))
sweep = {(b, g): (bits_per_weight(b, g), error_of(b, g)) for b in widths for g in groups}
for (bits, group), (size, error) in sweep.items():
    if bits in (4, 8):
        print(f"{bits} bits, {f'groups of {group}' if group else 'rows':13} {size:6.3f} bits  {error:7.2%}")

# %% name="reveal-bits"
this.reveal("bits-per-weight", sweep[4, 128][0])
this.record(bits=sweep[4, 128][0], error=sweep[4, 128][1])
this.holds("a group of 128 costs an eighth of a bit", sweep[4, 128][0] == 4.125)

# %% [markdown] name="zoo"
# An error of the weights is not an error of the answers. `shop` has a test set: questions about catalogues that it
# has never seen, graded to the last character. Two engines answer each, one in full precision and one quantised
# while loading. `same` counts answers that agree word for word, right or wrong.

# %% name="zoo-answers"
from quizzes.experiments.running import run_here

cases = 12 if this.quick else 40
answers = {}
for name, settings in {
    "int8 weights and activations": {"quantization": "int8"},
    "int4 weights, groups of 128": {"quantization": "rtn"},
    "int8 KV per token and head": {"quantization": "none", "kv_cache_dtype": "int8_per_token_head"},
}.items():
    found = answers[name] = run_here("quantization.answers", {**settings, "cases": cases})
    print(f"{name:30} right {found['right']} (float {found['right_float']}) of {cases}, same {found['same']}")

# %% [markdown] name="zoo-limits"
# Be careful with these counts. A few dozen questions cannot tell a loss of 3 % from none (the experiment
# `capacity.paired_eval` decides whether a sample can). A measure that does not wait for a wrong character is the KL
# divergence between the two distributions of the next token. You compute it below with your own quantiser.
#
# Now the time. A decode step of one row reads every weight and does little arithmetic with it; a step over many
# tokens reuses each weight. The cost model prices both at datasheet rates.

# %% name="speed"
rows = [1, 8, 32, 64, 128, 256, 512, 2048]
speedup = {}
for kind in ("int4", "fp8"):
    runs = [
        run_here("performance.precision_speedup", {"other": kind, "rows": 1, "tokens_per_row": n})
        for n in rows
    ]
    speedup[kind] = [run["linear"] for run in runs]
    print(f"{kind}:", ", ".join(f"{n} tokens {x:.2f} x" for n, x in zip(rows, speedup[kind], strict=True)))
this.reveal("large-batch-speedup", speedup["int4"][-1])
this.holds(
    "weight-only int4 gains until arithmetic is the limit",
    speedup["int4"][0] > 3 > 1.01 > speedup["int4"][-1],
)
this.holds("fp8 gains in a prefill, too", min(speedup["fp8"]) > 1.9)

# %% [markdown] name="speed-words"
# Weight-only int4 saves bytes, and the arithmetic stays in bf16: the gain ends where arithmetic becomes the limit.
# Real kernels even lose a little there, because they dequantise each tile; this model ignores that. fp8 also
# multiplies in fp8, on units with twice the rate, so a prefill gains too. That is the short form of "weight-only for
# latency, W8A8 for throughput".

# %% [markdown] name="plot"
# ## Plot
#
# Size against error. A line is a bit width, a point a group size. Points towards the lower left are better.

# %% name="pareto"
import itertools

from lessons.course.plots import figure

drawing, axes = figure(
    6.4, 3.2, xlabel="bits per weight, scales included", ylabel="relative error of weights"
)
for bits in widths:
    axes.plot(*zip(*[sweep[bits, group] for group in groups], strict=True), label=f"{bits} bits")
axes.set_yscale("log")
axes.legend(fontsize=8)
this.plot(drawing)
per_bit = [
    (sweep[few, group][1] / sweep[more, group][1]) ** (1 / (more - few))
    for few, more in itertools.pairwise(widths)
    for group in groups
]
print(f"each bit fewer: {min(per_bit):.2f} to {max(per_bit):.2f} times the error")
this.holds("each bit fewer about doubles the error", 1.9 < min(per_bit) <= max(per_bit) < 2.4)
by_size = [sweep[4, group][1] for group in groups]
this.holds("small groups help", by_size == sorted(by_size) and bits_per_weight(4, 16) == 5)

# %% [markdown] name="pareto-words"
# Each bit fewer doubles the step, and so about doubles the error. Small groups help too, for a different price: at 4
# bits, groups of 16 spend a whole bit on scales. Where a line with more bits passes below a point of a line with
# fewer, the extra bit beats the smaller group. The next picture shows what the saved bytes are worth in time.

# %% name="speed-plot"
drawing, axes = figure(
    6.4, 3, xlabel="tokens in the step", ylabel="time in bf16 / time", xscale="log", ylim=(0, 4.2)
)
for kind, values in speedup.items():
    axes.plot(rows, values, label=kind)
axes.legend(fontsize=8)
this.plot(drawing)

# %% [markdown] name="explore"
# ## Explore
#
# One row of a real matrix. Choose bits and group, and multiply one weight by the outlier factor. The grey lines are
# the grid of the group that contains the outlier.

# %% name="explore-row"


def draw_row(bits, group, outlier):
    row = weight[:1, :128].clone()
    row[0, 5] = row[0].abs().mean() * outlier
    rounded = round_to_nearest(row, group, bits=bits, symmetric=True)
    errors = (rounded.restore() - row)[0]
    others = torch.arange(128) != 5
    error = float(errors[others].norm() / row[0, others].norm())
    zeros = int(((rounded.restore()[0] == 0) & others).sum())
    drawing, axes = figure(6.4, 3, xlabel="column", ylabel="weight", ylim=(-0.35, 0.35))
    for step in range(-(2 ** (bits - 1)), 2 ** (bits - 1)):
        axes.axhline(step * float(rounded.scale[0, 0]), 0, group / 128, color="#BBBBBB", linewidth=0.6)
    axes.plot(row[0], linestyle="", markersize=4, label="weight")
    axes.plot(rounded.restore()[0], linestyle="", markersize=3, label="restored")
    axes.legend(fontsize=8, loc="upper right")
    return drawing, (
        f"{bits + 16 / group:.3f} bits per weight. "
        f"Error of the other 127 weights {error:.1%}; {zeros} of them became 0."
    )


this.explore("outlier", draw_row, bits=[4, 8, 3, 2], group=[128, 64, 32, 16], outlier=(1.0, 64.0, 8.0))

# %% name="reveal-outlier"


def mean_error(factor: float) -> float:
    """Mean absolute error of the weights that were not enlarged."""
    changed = weight.clone().reshape(-1, 128)
    changed[:, 7] *= factor
    restored = round_to_nearest(changed, 128, bits=4, symmetric=True).restore()
    keep = torch.arange(128) != 7
    return float((restored - changed)[:, keep].abs().mean())


growth = mean_error(32) / mean_error(1)
this.reveal("error-growth", growth)
loud = weight.clone().reshape(-1, 128)
loud[:, 7] *= 32
zeros = float((round_to_nearest(loud, 128, bits=4, symmetric=True).restore() == 0).float().mean())
print(f"{zeros:.0%} of the weights became 0")
this.holds("not 32", growth < 10)
this.holds("most of the group rounds to zero", zeros > 0.6)

# %% [markdown] name="outlier-words"
# Not 32: an error cannot exceed the weight itself by much. With a step this large most of the group rounds to zero,
# and the error is then as large as the weights themselves. Smaller groups do not remove the outlier; they leave it
# fewer neighbours.

# %% [markdown] name="use-131"
# ## Build
#
# Run the model on your quantiser. Every projection of `shop` goes through `quantize` and back; the embedding stays.
# The divergence is that of the next token on shop conversations, in nats per token: 0 means the same distribution.

# %% name="use-quantiser"
from engine.zoo.export import load_model
from engine.zoo.registry import resolve
from quizzes.experiments.quantization.shop import divergence, exact_match, texts

quantize, dequantize = this.piece("13.1")
folder = resolve("shop")
exact, samples, losses = load_model(folder), texts(folder, "en", 2 if this.quick else 4, seed=11), []
for bits in (8, 4) if this.quick else (8, 6, 4, 3):
    changed = load_model(folder)
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.copy_(dequantize(*quantize(parameter, bits, 32), 32))
    kl = divergence(exact, changed, samples)
    right = sum(exact_match(folder, changed, "en", 6 if this.quick else 24))
    print(f"{bits} bits, groups of 32: {kl:.4f} nats, {right} of {6 if this.quick else 24} answers right")
    losses.append(kl)
this.holds("the divergence grows with every bit less", losses == sorted(losses))

# %% [markdown] name="build-132"
# **13.2** `quantize` returns int8, so 4-bit steps still take a byte each. Pack two into one. The layout below is
# that of `kernels/reference/int4.py`; the next cell hands your bytes to the engine's own product.

# %% name="13.2" tags=["exercise"]
# exercise 13.2
import torch
from torch import Tensor


def pack_int4(q: Tensor) -> Tensor:
    """Return uint8 [out, in / 2]: q, int8 [out, in] of -8 to 7, two values in a byte.

    A value is stored as value + 8, that of the even column in the low four bits. Raises ValueError if `in` is odd.
    """
    raise NotImplementedError("13.2: add 8, shift the odd columns by 4 bits, join")


def unpack_int4(packed: Tensor) -> Tensor:
    """Return int8 [out, in]: the values that pack_int4 stored in packed, uint8 [out, in / 2]."""
    raise NotImplementedError("13.2: low and high four bits side by side, minus 8")


# %% name="check-13.2"
this.check("13.2")

# %% name="use-packing"
from kernels import ops

pack_int4, unpack_int4 = this.piece("13.2")
q, scales = quantize(weight, 4, 64)
packed = pack_int4(q)
zero = torch.full(scales.shape, 8, dtype=torch.uint8)
x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(0))
ours = ops.int4_linear(x, packed, scales, zero, 64)
print(
    "the engine's int4 kernel reads our bytes:",
    torch.allclose(ours, x @ dequantize(q, scales, 64).T, atol=1e-4),
)
stored = packed.nbytes + scales.nbytes
print(f"{weight.numel():,} weights: {2 * weight.numel():,} B in bf16, {stored:,} B packed")

# %% [markdown] name="build-133"
# **13.3** Weights are read once per step, the KV cache once per row. For a batch with long contexts the cache is the
# larger of the two. Keys and values arrive one token at a time, so a scale must not need future tokens: one for each
# token and head.

# %% name="13.3" tags=["exercise"]
# exercise 13.3
import torch
from torch import Tensor


def quantize_kv(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys or values x [tokens, kv_heads, head_dim] in int8, and their scales, fp32 [tokens, kv_heads].

    A scale is max|x| / 127 over the head_dim numbers of one token and head. Where it is 0, q is 0.
    """
    raise NotImplementedError("13.3: one scale per token and head")


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Return the bytes of one token's keys and values in this format, fp32 scales included."""
    raise NotImplementedError("13.3: count keys, values and scales")


# %% name="check-13.3"
this.check("13.3")

# %% name="use-kv"
quantize_kv, kv_bytes_per_token = this.piece("13.3")
for name, shape in {"shop": (6, 4, 32), "Llama-3 8B": (32, 8, 128)}.items():
    layers, heads, dim = shape
    bf16 = 2 * layers * heads * dim * 2
    int8 = kv_bytes_per_token(*shape)
    print(
        f"{name}: {bf16:,} B per token in bf16, {int8:,} B in int8 with scales: {bf16 / int8:.2f} x the tokens"
    )
kinds = run_here("quantization.kv_scales", {})
for name in ("int8_tensor", "int8_token", "int8_token_head", "fp8_unscaled"):
    print(f"{name:16} error of the attention output {kinds[name]:.2%}")
finest = min(kinds[name] for name in ("int8_tensor", "int8_token", "int8_token_head", "fp8_unscaled"))
this.holds("a scale per token and head has the smallest error", kinds["int8_token_head"] == finest)

# %% [markdown] name="adapters"
# Fewer bits make one model cheaper. A LoRA adapter makes *another* model cheap: it adds a product of two thin
# matrices to a frozen weight. Fifty customers share the large matrices and bring a few thousandths of them each. One
# step can serve rows of several adapters and of the base model; each row must get what its adapter, merged, would
# give.

# %% name="run-adapters" tags=["varies"]
served = run_here("lora.exactness", {})
print(
    f"{served['adapters_in_one_step']} adapters in one step: same tokens as merged weights {served['same_tokens']}, "
    f"largest difference of a logit {served['worst_difference']:.1e}"
)
price = run_here("lora.footprint", {"model": "llama-3.1-8b", "rank": 16, "adapters": 50})
print(
    f"rank 16 on Llama-3.1 8B: {price['adapter_mb']:.0f} MB, {price['share_of_base']:.1%} of the base model"
)
print(
    f"50 models: {price['devices_shared']} H100 with adapters, {price['devices_replicas']} with a copy for each"
)
this.record(adapters_exact=served["same_tokens"])
this.holds("each row gets what its adapter, merged, would give", served["same_tokens"])
this.holds("an adapter is a few thousandths of the model", 0.002 < price["share_of_base"] < 0.01)

# %% [markdown] name="break"
# ## Break it
#
# int8 with rounded *activations* is fast because the product is over integers. Large models have a few activation
# channels that are far larger than the rest, and a token's largest number sets its scale. `shop` is too small for
# that, so the cell gives it two such channels without changing its function: it multiplies them by a factor and
# divides the weights that read them.

# %% name="outliers"
factors = [1, 256] if this.quick else [1, 4, 16, 64, 256]
runs = [run_here("quantization.outliers", {"factor": factor}) for factor in factors]
labels = {
    "weight_only": "int8 weights, float activations",
    "w8a8_token": "int8 both, scale per token",
    "llm_int8": "LLM.int8: outliers stay floats",
    "smoothquant": "SmoothQuant: moved into weights",
}
drawing, axes = figure(
    6.4, 3.4, xlabel="outlier factor", ylabel="error of the output", xscale="log", yscale="log"
)
for name, label in labels.items():
    axes.plot(factors, [run[name] for run in runs], label=label)
axes.legend(fontsize=8)
this.plot(drawing)
print(
    f"scale per token: {runs[0]['w8a8_token']:.2%} without outliers, {runs[-1]['w8a8_token']:.1%} at factor 256"
)
flat = [run[name] for run in runs for name in ("llm_int8", "smoothquant")]
this.holds("LLM.int8 and SmoothQuant are flat", max(flat) < 1.3 * min(flat))
this.holds("weight-only int8 suffers too", runs[-1]["weight_only"] > 5 * runs[0]["weight_only"])
this.record(healthy=runs[0]["w8a8_token"], broken=runs[-1]["w8a8_token"], smooth=runs[-1]["smoothquant"])
this.holds("the loud channel takes the grid", runs[-1]["w8a8_token"] > 0.5)

# %% [markdown] name="break-words"
# One scale per token: the loud channel takes the grid, and its 254 neighbours share the few steps around zero. The
# repairs differ in where the loud number goes. LLM.int8 multiplies it apart, with the weights that it meets, as floats.
# SmoothQuant moves it into the weights beforehand. Both are flat here: whatever factor the cell chose does not matter.
#
# Weight-only int8 suffers too, for another reason: the columns that read a loud channel became small, and a scale
# per row rounds small columns away. Nothing crashes and no metric of the server moves. Only an evaluation notices.

# %% [markdown] name="say"
# ## Say it in 60 seconds

# %% name="say-it"
this.say()

# %% [markdown] name="now"
# ## What you can answer now
#
# `prep mine` runs the engine with your quantiser. `prep zoo quantize shop --method gptq --output runs/my-shop`
# writes a checkpoint with a method that looks at activations, and `prep zoo formats shop` compares all formats.

# %% name="questions"
this.questions()
