# %% [markdown] name="why"
# # Lesson 01: naive generate, and honest timing
#
# ## Why an interviewer asks
#
# "Write the decode loop" is a common opening. The loop has eight lines. The follow-ups decide:
#
# * Why can token 7 not start before token 6 is known?
# * What does one more token cost, without a cache?
# * "My benchmark says 31 ms per token." What did it measure, and how much of that is noise?
#
# You write the loop and a stopwatch that survives the third question. Both stay in use until lesson 16.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("01")

# %% [markdown] name="conventions"
# How the lessons work:
#
# * **Predict.** Replace `...` in a `this.predict` cell before you run what follows. Only the first answer counts. A
#   wrong prediction is worth more than none.
# * **Check.** You write code in exercise cells. `this.check("01.1")` runs it in a process of its own against named
#   checks and shows the smallest case that fails. `this.hint("01.1")` helps, and costs points.
# * **Piece.** `this.piece("01.1")` is your code once it has passed its checks, the reference solution until then. So
#   every cell below runs today, and runs *your* code later.

# %% [markdown] name="predict"
# ## Predict
#
# The model is `shop`: 6 layers, 4.7 million weights, trained to answer customers of a manga shop. First its prompt,
# as the model sees it. The chat template adds the tokens around the two messages.

# %% name="prompt"
from engine import LLM, SamplingParams

llm = LLM("shop")
notes = {"role": "system", "content": "Silver Harbor costs 640 yen. Silver Harbor spans 12 volumes."}
question = {"role": "user", "content": "How much is Silver Harbor?"}
prompt_ids = llm.llm_engine.input_processor.chat_prompt([notes, question])["prompt_token_ids"]
num_tokens = 24 if this.quick else 96
print(f"{len(prompt_ids)} prompt tokens, {num_tokens} tokens to generate")

# %% name="predict-passes"
this.predict(
    "tokens-computed",
    ...,
    question="All of them are generated without a cache: each new token costs a forward pass over the whole "
    "sequence. How many tokens go through the layers, over all passes?",
    unit="tokens",
)

# %% name="predict-slowdown"
this.predict(
    "slowdown",
    ...,
    question="How many times as long as the first pass does the last pass take?",
    unit="x",
)

# %% name="predict-cold"
this.predict(
    "cold-start",
    ...,
    question="A new process loads the model and computes one and the same token 16 times. "
    "How many times as long as the typical pass does its first pass take?",
    unit="x",
)

# %% [markdown] name="first-piece"
# ## First piece: the loop
#
# **01.1** Before you measure a loop, write it. `model` is a function from ids to the logits after the last one; you
# choose, append, and stop. Two details make it the engine's loop: the end token belongs to the result (vLLM's
# `token_ids` contain it, its text does not), and an end token *in the prompt* ends nothing.

# %% name="01.1" tags=["exercise"]
# exercise 01.1
from collections.abc import Callable, Collection


def greedy_generate(
    model: Callable[[list[int]], list[float]],
    prompt_ids: list[int],
    max_tokens: int,
    eos_ids: Collection[int],
) -> list[int]:
    """Return the new tokens of a greedy generation without a cache.

    model: returns the logits that follow a sequence of token ids. Of equal logits the smallest id wins.
    Stops after max_tokens tokens, or after a token in eos_ids, which is part of the result.
    """
    raise NotImplementedError(
        "01.1: call the model on prompt and new tokens, append the best id, stop in time"
    )


# %% name="check-01.1"
this.check("01.1")

# %% [markdown] name="run"
# ## Run it
#
# `PlainModel` is the forward pass in 60 lines of torch: no cache, no batch (`lessons/given/model.py`; read it now,
# you will change what it calls). We wrap it so that each pass leaves its time in a log, and generate with your
# loop of exercise 01.1.

# %% name="run-naive"
from time import perf_counter

from lessons.given.model import PlainModel

model = PlainModel.load("shop")
greedy_generate = this.piece("01.1")


def generate_naively(num_tokens):
    """Return the new tokens and the seconds of each pass."""
    seconds = []

    def last_logits(ids):
        began = perf_counter()
        logits = model(ids)[-1].tolist()
        seconds.append(perf_counter() - began)
        return logits

    return greedy_generate(last_logits, prompt_ids, num_tokens, ()), seconds


answer = greedy_generate(lambda ids: model(ids)[-1].tolist(), prompt_ids, num_tokens, {2})
print(f"{len(answer)} tokens, the last one is end-of-sequence: {llm.llm_engine.tokenizer.decode(answer)!r}")
this.holds("the model ends its answer early", answer[-1] == 2 and len(answer) < num_tokens)

# %% [markdown] name="count"
# The model ends its answer early. To measure, we generate on regardless (`eos_ids` is empty) and count tokens in the
# layers. The count is exact and the same on every machine: **counters first, clocks second**.

# %% name="reveal-passes"
before = model.num_tokens_computed
naive_ids, _ = generate_naively(num_tokens)
tokens_computed = model.num_tokens_computed - before
this.reveal("tokens-computed", tokens_computed)

known = len(prompt_ids) + num_tokens - 1
print(
    f"Each of the {known} tokens had to be computed once; the other {tokens_computed - known:,} were repeats."
)
print(f"Repeated: {1 - known / tokens_computed:.1%}")
millions = sum(weights.numel() for weights in model.weights.values()) / 1e6
this.holds("6 layers, 4.7 million weights", (model.num_layers, round(millions, 1)) == (6, 4.7))

# %% [markdown] name="same-tokens"
# The engine in this repository keeps a KV cache, batches, and has kernels of its own. It must still produce these
# tokens. An optimisation that changes the output is a bug, and this comparison stays in every lesson.

# %% name="compare-with-engine"
params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
[output] = llm.generate([{"prompt_token_ids": prompt_ids}], params, use_tqdm=False)
engine_ids = list(output.outputs[0].token_ids)
print(f"the naive loop and the engine agree on {num_tokens} tokens: {naive_ids == engine_ids}")
this.record(tokens_computed=tokens_computed, same_tokens=naive_ids == engine_ids)
this.holds("the engine must produce these tokens", naive_ids == engine_ids)

# %% [markdown] name="plot"
# ## Plot
#
# One run is an anecdote. The next cell generates several times and keeps, for each token, the median of its times and
# the middle half of them (25 % to 75 %). Wide bands mean that something else used the machine.

# %% name="measure-tokens" tags=["varies"]
import numpy as np


def time_engine():
    """Return the seconds until each token of the engine's stream."""
    times = [perf_counter()]
    for _ in llm.stream({"prompt_token_ids": prompt_ids}, params):
        times.append(perf_counter())
    return np.diff(times)


generate_naively(4), time_engine()  # warm up
repeats = 3 if this.quick else 7
naive_ms = 1e3 * np.array([generate_naively(num_tokens)[1] for _ in range(repeats)])
engine_ms = 1e3 * np.array([time_engine()[:num_tokens] for _ in range(repeats)])
low, naive_median, high = np.percentile(naive_ms, [25, 50, 75], axis=0)
print(
    f"naive: {naive_median.mean():.1f} ms per token; middle half of the times within ±{(high - low).mean() / 2:.1f} ms"
)

# %% name="plot-tokens" tags=["varies"]
from lessons.course.plots import COLOURS, figure

at = np.arange(num_tokens)
slope, start = np.polyfit(at, naive_median, 1)
drawing, axes = figure(
    xlabel="output token", ylabel="ms", title="Time of each token: without a cache, and in the engine"
)
for times, name, label in (
    (naive_ms, "vermillion", "naive: the whole sequence each time"),
    (engine_ms, "blue", "the engine"),
):
    low, middle, high = np.percentile(times, [25, 50, 75], axis=0)
    axes.fill_between(at, low, high, color=COLOURS[name], alpha=0.25, linewidth=0)
    axes.plot(at, middle, color=COLOURS[name], marker="", label=label)
axes.plot(
    at,
    start + slope * at,
    color=COLOURS["black"],
    linestyle="--",
    marker="",
    label=f"fit: +{slope:.2f} ms per token",
)
axes.set_ylim(0)
axes.legend()
this.plot(drawing)

# %% name="reveal-slowdown" tags=["varies"]
edge = max(2, num_tokens // 8)  # compare medians over a few tokens: single passes are noisy
slowdown = float(np.median(naive_ms[:, -edge:]) / np.median(naive_ms[:, :edge]))
this.reveal("slowdown", round(slowdown, 2))
longer = (len(prompt_ids) + num_tokens - 1) / len(prompt_ids)
print(f"The last sequence is {longer:.1f} times as long as the first.")
this.record(slowdown=slowdown)
if not this.quick:
    later = np.median(engine_ms, axis=0)[1:]
    this.holds("the naive line grows", slope > 0)
    this.holds("it grows more slowly than the length", 1 < slowdown < longer)
    this.holds("the engine's first token reads the prompt", np.median(engine_ms[:, 0]) > 2 * np.median(later))
    this.holds("then its line is flat", np.median(later[-edge:]) < 1.5 * np.median(later[:edge]))
    this.holds("the naive line is higher", naive_median.min() > np.median(later))

# %% [markdown] name="read-the-plot"
# The naive line grows because each pass is longer by one token. Here it grows more slowly than the length, because a
# pass has a fixed cost (Python, small matrices). It would grow faster once attention's square dominates.
#
# The engine's first token reads the prompt; the others cost one token each, so its line is flat. The *height* between
# the lines is not the cache alone: the engine's kernels are faster, too. Lesson 02 separates the two.

# %% [markdown] name="explore"
# ## Explore: where a token's time goes
#
# We measure a pass in three parts at several lengths: attention (through the model's `attend` hook), the output head
# (alone), and the rest, which is mostly the matrix products of the layers.

# %% name="measure-parts"
from torch.nn.functional import linear

from lessons.given.model import causal_attention

measure = this.piece("01.2")
head = model.weights["model.embed_tokens.weight"]


def parts(length):
    """Return the median milliseconds of a pass: layers, attention, head."""
    spent = []

    def timed(*arguments):
        began = perf_counter()
        mixed = causal_attention(*arguments)
        spent.append(perf_counter() - began)
        return mixed

    whole = measure(lambda: model([5] * length, attend=timed), perf_counter, 2, repeats)["median"]
    attention = np.median(np.reshape(spent, (-1, model.num_layers)).sum(1)[2:])
    output = measure(lambda: linear(head[:length], head), perf_counter, 2, repeats)["median"]
    return [1e3 * max(0.0, value) for value in (whole - attention - output, attention, output)]


# %% name="parts-table" tags=["varies"]
lengths = [1, 32, 128, 512] if this.quick else [1, 16, 32, 64, 128, 256, 512]
costs = np.array([parts(length) for length in lengths])
for length, (layers, attention, output) in zip(lengths, costs, strict=True):
    print(f"{length:4} tokens: layers {layers:6.1f} ms, attention {attention:6.1f} ms, head {output:5.1f} ms")
if not this.quick:
    grown = (costs[-1] / costs[-1].sum()) - (costs[0] / costs[0].sum())
    this.holds("attention's share grows most with the length", grown.argmax() == 1)


# %% name="draw-parts"
def where_time_goes(prompt, generated):
    sequence = prompt + np.arange(generated)
    by_part = np.array([np.interp(sequence, lengths, column) for column in costs.T])
    shown = np.unique(np.linspace(0, generated - 1, 9).astype(int))
    drawing, axes = figure(
        xlabel="output token", ylabel="ms", title="Time of a token without a cache, by part"
    )
    bottom = np.zeros(len(shown))
    for name, colour, values in zip(
        ("layers", "attention", "output head"), ("blue", "orange", "green"), by_part[:, shown], strict=True
    ):
        axes.bar(
            [str(index + 1) for index in shown], values, bottom=bottom, color=COLOURS[colour], label=name
        )
        bottom = bottom + values
    axes.legend(loc="upper left")
    passes, once = int(sequence.sum()), prompt + generated - 1
    shares = ", ".join(
        f"{name} {part / by_part.sum():.0%}"
        for name, part in zip(("layers", "attention", "head"), by_part.sum(1), strict=True)
    )
    return drawing, (
        f"{prompt} prompt tokens, {generated} new: {passes:,} tokens computed, {1 - once / passes:.0%} of them again.\n"
        f"About {by_part.sum() / 1e3:.2f} s: {shares}. The last token alone: {by_part[:, -1].sum():.1f} ms."
    )


# %% name="explore-parts" tags=["varies"]
this.explore("where-time-goes", where_time_goes, prompt=(8, 384, 34), generated=(1, 128, 96))
again = [1 - (7 + new) / sum(range(8, 8 + new)) for new in range(1, 129)]
this.holds("with a prompt of 8 tokens the slider reaches 90 %", max(again) > 0.9)

# %% [markdown] name="explore-questions"
# Move the sliders until you can answer: With a prompt of 8 tokens, after how many new tokens are 90 % of the computed
# tokens computed again? Whose share grows most with the length, and why that one's? And why is computing the head at
# every position a waste even without a cache?

# %% [markdown] name="build"
# ## Build
#
# **01.2** The stopwatch. Warm up, then time each run alone, then report the median *and* the quartiles. Noise mostly
# adds time, and a few runs get most of it: a mean reports the noise, a single run reports luck. The clock is an
# argument: a test can replace it, and on a GPU it must wait for the device (`torch.cuda.synchronize()`) before it
# reads the time. A CUDA call returns when the work is queued, not when it is done.

# %% name="01.2" tags=["exercise"]
# exercise 01.2
from collections.abc import Callable


def measure(
    run: Callable[[], object], clock: Callable[[], float], warmup: int = 3, repeats: int = 10
) -> dict[str, float]:
    """Return the median and the quartiles of the seconds that run() takes: median, low (25 %), high (75 %).

    clock: returns seconds. The first `warmup` runs do not count. Quartiles interpolate as numpy.percentile does.
    Raises ValueError if repeats < 2: one time has no spread.
    """
    raise NotImplementedError("01.2: warm up, time every run alone, return median, low and high")


# %% name="check-01.2"
this.check("01.2")

# %% [markdown] name="latency"
# **01.3** The two figures of every serving benchmark. **TTFT**, time to first token, and **TPOT**, time per output
# token *after* the first: *n* tokens have *n - 1* gaps. From the log of a naive run, compute both, and the seconds
# that went into tokens which an earlier pass had computed already.


# %% name="01.3" tags=["exercise"]
# exercise 01.3
def split_time(prompt_len: int, step_seconds: list[float]) -> dict[str, float | None]:
    """Split the time of a generation without a cache: ttft, tpot and again, in seconds.

    step_seconds[i]: time of the forward pass over prompt_len + i tokens, which gives output token i.
    ttft: time to first token. tpot: mean time per later token, None if there is only one token.
    again: time spent on tokens that an earlier pass had computed; the tokens of a pass share its time equally.
    """
    raise NotImplementedError(
        "01.3: the first pass, the mean of the later ones, and the share of known tokens"
    )


# %% name="check-01.3"
this.check("01.3")

# %% name="use-pieces" tags=["varies"]
split_time = this.piece("01.3")
for name, times in (("naive", naive_ms), ("engine", engine_ms)):
    found = split_time(len(prompt_ids), [float(value) for value in np.median(times, axis=0)])
    print(f"{name:6}: TTFT {found['ttft']:5.1f} ms, TPOT {found['tpot']:5.2f} ms")
found = split_time(len(prompt_ids), [float(value) for value in naive_median])
print(f"repeated work: {found['again'] / naive_median.sum():.0%} of the naive run's time")

# %% [markdown] name="break"
# ## Break it: leave out the warm-up
#
# The most common error of a benchmark. Each line below is a new process that computes one and the same token again
# and again. Its first pass also loads code pages, lets libraries choose kernels, allocates memory, and fills caches.

# %% name="run-cold" tags=["varies"]
import subprocess
import sys

from prep_common.child_process import ROOT

CHILD = """
from time import perf_counter
from lessons.given.model import PlainModel
model = PlainModel.load("shop")
for _ in range(16):
    began = perf_counter()
    model([5])
    print(1e3 * (perf_counter() - began))
"""


def fresh_process():
    done = subprocess.run([sys.executable, "-c", CHILD], cwd=ROOT, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


cold = np.array([fresh_process() for _ in range(2 if this.quick else 5)])
typical = np.median(cold[:, 4:], axis=1)
this.reveal("cold-start", round(float(np.median(cold[:, 0] / typical)), 1))

# %% name="plot-cold" tags=["varies"]
drawing, axes = figure(xlabel="pass", ylabel="ms", title="One and the same token, 16 times, in new processes")
for times in cold:
    axes.plot(range(1, 17), times, marker="o", markersize=3, color=COLOURS["sky"], linewidth=0.8)
axes.plot(
    range(1, 17), np.median(cold, axis=0), marker="", color=COLOURS["black"], label="median of the processes"
)
axes.set_ylim(0)
axes.legend()
this.plot(drawing)
first_four, all_of_them = cold[:, :4].mean(), cold.mean()
print(f"mean of the first 4 passes: {first_four:.1f} ms   mean of all 16: {all_of_them:.1f} ms")
print(f"median after 4 warm-up passes: {np.median(typical):.1f} ms")
this.record(cold=float(np.median(cold[:, 0] / typical)))
if not this.quick:
    this.holds("the first pass of a process is the slow one", np.median(cold[:, 0] / typical) > 1)
    this.holds("a mean without warm-up mixes both", first_four > all_of_them > np.median(typical))

# %% [markdown] name="warm-up-lesson"
# A benchmark without warm-up measures a mixture of a cold start and of the steady state, in a proportion that depends
# on how long it runs. Both are worth knowing: users after a scale-out see the first, all others the second. Report
# them apart. `prep bench latency` does what you built: it warms up, repeats, and prints a spread.

# %% [markdown] name="say"
# ## Say it in 60 seconds
#
# Speak first, then type what you said, then answer the probes. They grade you; nothing compares your prose.

# %% name="say-it"
this.say()

# %% [markdown] name="questions"
# ## What you can answer now

# %% name="ask"
this.questions()
