# ruff: noqa: F401  exercise cells import what their solution needs
# %% [markdown] name="why"
# # Lesson 05: padding, packing and masks
#
# ## Why an interviewer asks
#
# "Prompts have different lengths. How do they share one forward pass?" Many guides answer "pad and mask". That is how
# `generate` of Hugging Face transformers runs a batch. vLLM never pads a prompt to the length of another one. The
# follow-ups find out which of the two you know:
#
# * What is the shape of the token ids that the model gets?
# * How does attention know where a request ends?
# * What does a static batch waste, and on what does that depend?
#
# You build both: the rectangle and the ragged batch. The engine shows that its own input is the second.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("05")

# %% [markdown] name="predict"
# ## Predict
#
# Twelve requests to a bookshop's assistant. Some customers say hello; for others the application puts notes about the
# books in front of the question. The model's own answers give the output lengths.

# %% name="requests"
from engine import LLM, SamplingParams

prices = {"Silver Harbor": 640, "Quiet Moon": 480, "Red Garden": 520, "Iron Crow": 700, "Blue Attic": 610}
notes = [f"{book} costs {yen} yen. {book} spans {yen // 40} volumes." for book, yen in prices.items()]
asked = [(0, "Hello!"), (1, "How much is Silver Harbor?"), (0, "Thank you."), (5, "How much is Iron Crow?")]
asked += [(2, "Which is longer, Quiet Moon or Silver Harbor?"), (0, "Hi"), (0, "Good evening.")]
asked += [
    (4, "How many volumes does Iron Crow have?"),
    (1, "How much is Silver Harbor?"),
    (0, "Good morning."),
]
asked += [(3, "Which is cheaper, Red Garden or Quiet Moon?"), (0, "Thanks!")]

llm = LLM("shop")
chats = [
    [{"role": "system", "content": " ".join(notes[:count])}] * bool(count)
    + [{"role": "user", "content": text}]
    for count, text in asked
]
answers = llm.chat(chats, SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
prompts = [answer.prompt_token_ids for answer in answers]
prompt_lens = [len(prompt) for prompt in prompts]
output_lens = [len(answer.outputs[0].token_ids) for answer in answers]
print("prompt tokens:", *prompt_lens)
print("output tokens:", *output_lens)

# %% name="predict-padding"
this.predict(
    "padding",
    ...,
    question="The 12 prompts are padded to the longest. What percentage of the rectangle is padding?",
    unit="percent",
)

# %% name="predict-mask"
for side in ("left", "right"):
    this.predict(
        f"changed-{side}",
        ...,
        question=f"Padding on the {side}, causal attention, no padding mask. For how many of the "
        "12 rows do the logits of the last own token change?",
        unit="rows",
    )

# %% [markdown] name="first-piece"
# ## First piece: the rectangle
#
# **05.1** The rectangle. Generation wants padding on the **left**: then the last column is the last token of every
# row, and the next token goes into the next column of every row.

# %% name="05.1" tags=["exercise"]
# exercise 05.1
from collections.abc import Sequence


def pad_batch(
    sequences: Sequence[Sequence[int]], pad_id: int, side: str
) -> tuple[list[list[int]], list[list[bool]], list[list[int]]]:
    """Return (ids, mask, positions) of the rectangle [rows, longest]; no argument is changed.

    side: where padding goes, "left" or "right"; ValueError for any other. mask: True for tokens of the sequence, even
    if they equal pad_id. positions: 0, 1, ... from a row's first own token; 0 for padding. An empty batch: three empty
    lists.
    """
    raise NotImplementedError("05.1: per row a gap before or after, in all three lists")


# %% name="check-05.1"
this.check("05.1")

# %% [markdown] name="run"
# ## Run it
#
# First the rectangle of exercise 05.1: ids, a mask of own tokens, and positions. Three short sequences, padded
# with 0:

# %% name="run-small"
pad_batch = this.piece("05.1")
for side in ("left", "right"):
    parts = pad_batch([[5, 6, 7, 8], [9], [3, 4]], 0, side)
    for name, rows in zip(("ids", "mask", "positions"), parts, strict=True):
        print(f"{side:5} {name:9}", *([int(value) for value in row] for row in rows))

# %% name="run-padding"
ids, mask, positions = pad_batch(prompts, 2, "left")
used, area = sum(map(sum, mask)), len(mask) * len(mask[0])
print(f"{len(ids)} rows x {len(ids[0])} columns = {area:,} positions, of which {used} hold a token")
this.reveal("padding", 100 * (1 - used / area))
this.record(used=used, area=area)
this.holds("twelve requests", len(ids) == 12)

# %% [markdown] name="run-mask"
# The rectangle must not change what a row says. Linear layers, norms and embeddings treat each position alone, so
# padding cannot leak there. Attention is the one place where positions meet, and the mask belongs there: a query sees
# a key if the key is not later, **and** if it is not padding.
#
# One trap: padding on the left has no key that it may see, and a softmax over nothing is NaN (some kernels return 0
# instead). Weight 0 times NaN is NaN, so one layer later the NaN would reach the row's own tokens. Therefore each
# position may see itself.

# %% name="rectangle-attention"
import torch
from torch.nn.functional import scaled_dot_product_attention

from lessons.given.model import PlainModel

model = PlainModel.load("shop")


def rectangle_attention(mask, use_mask=True):
    """Return attention over [rows * width, heads, head_dim], a flattened rectangle."""
    keep = torch.tensor(mask)
    rows, width = keep.shape
    visible = torch.ones(width, width, dtype=torch.bool).tril().expand(rows, width, width)
    if use_mask:
        visible = visible & keep[:, None, :] | torch.eye(width, dtype=torch.bool)

    def attend(query, key, value, start):
        parts = (part.unflatten(0, (rows, width)).transpose(1, 2) for part in (query, key, value))
        mixed = scaled_dot_product_attention(*parts, attn_mask=visible[:, None], enable_gqa=True)
        return mixed.transpose(1, 2).flatten(0, 1)

    return attend


# %% name="run-rectangle"
def flat(rows):
    return [value for row in rows for value in row]


def padded_logits(side, use_mask=True):
    """Return the logits of each row's last own token, and all logits [rows, width, vocab]."""
    ids, mask, positions = pad_batch(prompts, 2, side)
    attend = rectangle_attention(mask, use_mask)
    logits = model(flat(ids), positions=flat(positions), attend=attend).unflatten(0, (len(ids), -1))
    width = len(ids[0])
    last = [width - 1 if side == "left" else len(prompt) - 1 for prompt in prompts]
    return logits[range(len(ids)), last], logits


def compare(name, logits):
    """Print and return the number of rows whose logits differ from the row alone by more than 0.001."""
    off = (logits - alone).abs().amax(1)
    changed, tokens = int((off > 1e-3).sum()), int((logits.argmax(1) != alone.argmax(1)).sum())
    print(
        f"{name:31} {changed:2} rows changed (largest difference {off.max():.0e}), {tokens} next tokens differ"
    )
    return changed


# %% name="compare-rectangle" tags=["varies"]
alone = torch.stack([model(prompt)[-1] for prompt in prompts])
with_mask = {side: compare(f"padded {side}, mask", padded_logits(side)[0]) for side in ("left", "right")}
this.record(with_mask=sum(with_mask.values()))
this.holds("with a mask all rows are equal up to rounding", not any(with_mask.values()))

# %% [markdown] name="run-packed-words"
# Equal up to rounding, at the price of all those positions. Now the ragged batch: one list of tokens, row after row.
# There is no rectangle and no padding. Attention learns the rows from `query_start_loc`, and each token brings its own
# position. (`pack` is exercise 05.3.)

# %% name="run-packed" tags=["varies"]
pack = this.piece("05.3")


def packed_logits(use_rows=True):
    query_start_loc, positions, row_of_token = pack(prompt_lens, [0] * len(prompts))
    row = torch.tensor(row_of_token)
    visible = torch.ones(len(row), len(row), dtype=torch.bool).tril()
    if use_rows:
        visible = visible & (row[:, None] == row)

    def attend(query, key, value, start):
        parts = (part.transpose(0, 1) for part in (query, key, value))
        mixed = scaled_dot_product_attention(*parts, attn_mask=visible, enable_gqa=True)
        return mixed.transpose(0, 1)

    logits = model(flat(prompts), positions=positions, attend=attend)
    return logits[[end - 1 for end in query_start_loc[1:]]]


before = model.num_tokens_computed
changed = compare("packed", packed_logits())
computed = model.num_tokens_computed - before
print(f"{computed} positions computed instead of {area:,}")
this.holds("the ragged batch has no padding and changes no row", computed == used and changed == 0)

# %% [markdown] name="run-engine-words"
# A mask of tokens x tokens is fine for a lesson. A variable-length kernel never builds it: it walks from
# `query_start_loc[r]` to `query_start_loc[r + 1]` and cannot look into another row. What does the live engine do?

# %% name="run-engine"
from quizzes.experiments.running import run_here

live = run_here("batching.packed_forward", {"lens": prompt_lens, "output": 2 if this.quick else 6})
print(
    f"shape of the token ids: {live['input_shape']}, forward passes of the first step: {live['forward_passes']}"
)
print(f"a rectangle would hold {live['padded_tokens']:,} positions")
print(f"{live['equal_outputs']} of {live['requests']} requests say the same tokens alone and in the batch")
this.record(input_shape=live["input_shape"], equal_outputs=live["equal_outputs"])
this.holds("the engine's own input is the ragged batch", live["input_shape"] == [sum(prompt_lens)])
this.holds("its requests say the same tokens", live["equal_outputs"] == live["requests"])

# %% [markdown] name="plot"
# ## Plot
#
# A static batch wastes twice: short prompts wait for the longest prompt, and short answers for the longest answer. Each
# column is one position per row; the decode steps begin at the line.

# %% name="waste-map"
import numpy as np
from matplotlib.colors import ListedColormap

from lessons.course.plots import COLOURS, figure


def waste_map(prompts, outputs):
    """Return int [rows, columns]: 0 padding, 1 prompt, 2 decode."""
    width, steps = max(prompts), max(outputs) - 1
    cells = np.zeros((len(prompts), width + steps), int)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        cells[row, width - prompt : width] = 1
        cells[row, width : width + output - 1] = 2
    return cells


# %% name="waste-plot"
cells = waste_map(prompt_lens, output_lens)
drawing, axes = figure(xlabel="position in the static batch", ylabel="request", title="Padded on the left")
axes.grid(False)
colours = ListedColormap(["#E4E4E4", COLOURS["blue"], COLOURS["orange"]])
axes.imshow(cells, cmap=colours, aspect="auto", interpolation="nearest")
axes.axvline(max(prompt_lens) - 0.5, color=COLOURS["black"])
for name, colour in {"prompt": COLOURS["blue"], "decode": COLOURS["orange"], "padding": "#E4E4E4"}.items():
    axes.plot([], [], "s", color=colour, label=name)
axes.legend(loc="lower left", fontsize=8)
this.plot(drawing)

# %% name="waste-numbers"
padding_waste = this.piece("05.2")


def used_share(counts, phase):
    used, wasted = counts[f"{phase}_used"], counts[f"{phase}_padded"]
    return used / max(1, used + wasted)


counts = padding_waste(prompt_lens, output_lens)
assert (cells > 0).sum() == counts["prefill_used"] + counts["decode_used"]
for phase in ("prefill", "decode"):
    print(
        f"{phase}: {counts[f'{phase}_used']} of {counts[f'{phase}_used'] + counts[f'{phase}_padded']:,} positions",
        end="",
    )
    print(f" used, {used_share(counts, phase):.0%}")
print(f"whole batch: {(cells > 0).mean():.0%} used")
this.record(waste=counts)
this.holds("a static batch wastes twice", counts["prefill_padded"] > 0 < counts["decode_padded"])

# %% [markdown] name="plot-read"
# The two halves cost differently. Padding in the prefill costs arithmetic in every layer. A finished row in a decode
# step costs little time, because such a step mostly reads the weights, whatever the number of rows. It costs a *slot*
# that a waiting request could have used. Packing repairs the left half; the right half needs continuous batching
# (lesson 06).

# %% [markdown] name="explore"
# ## Explore
#
# 256 prompts in static batches. Choose the distribution of the lengths and the batch size. `sort` puts requests of
# similar length together before batches are cut, as offline jobs do ("bucketing").

# %% name="explore-draw"
from random import Random


def draw_lengths(shape, count=256, mean=60, seed=5):
    rng = Random(seed)
    if shape == "equal":
        return [mean] * count
    if shape == "uniform":
        return [rng.randint(1, 2 * mean - 1) for _ in range(count)]
    if shape == "exponential":
        return [max(1, round(rng.expovariate(1 / mean))) for _ in range(count)]
    return [rng.choices((32, 320), (0.9, 0.1))[0] for _ in range(count)]  # one in ten is ten times as long


# %% name="explore-show"
def show_waste(shape, batch_size, sort):
    lens = draw_lengths(shape)
    queue = sorted(lens) if sort else lens
    batches = [queue[at : at + batch_size] for at in range(0, len(queue), batch_size)]
    shares = [used_share(padding_waste(batch, [1] * len(batch)), "prefill") for batch in batches]
    computed = sum(len(batch) * max(batch) for batch in batches)
    drawing, axes = figure(6.4, 2.6, xlabel="batch", ylabel="share of positions", ylim=(0, 1.3))
    axes.bar(range(len(shares)), shares, color=COLOURS["blue"], label="used")
    axes.bar(range(len(shares)), [1 - s for s in shares], bottom=shares, color="#D5D5D5", label="padding")
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    return drawing, (
        f"Lengths: mean {sum(lens) / len(lens):.0f}, longest {max(lens)}. {len(batches)} batches compute {computed:,} "
        f"positions for {sum(lens):,} tokens: {1 - sum(lens) / computed:.0%} padding."
    )


# %% name="explore-waste"
shapes = ["exponential", "uniform", "two kinds", "equal"]
this.explore("waste", show_waste, shape=shapes, batch_size=[8, 1, 2, 32, 128], sort=False)
at_128 = show_waste("equal", 128, False)[1]
this.holds(
    "there is a distribution for which the batch size does not matter", at_128.endswith(" 0% padding.")
)
unsorted, bucketed = (int(show_waste("exponential", 8, sort)[1].split()[-2][:-1]) for sort in (False, True))
this.holds("sorting saves at batch size 8", bucketed < 0.2 * unsorted)

# %% [markdown] name="explore-questions"
# Find: a distribution for which the batch size does not matter. How much `sort` saves at batch size 8, and why it
# cannot help the decode steps of a chat service, which does not know the output lengths in advance.
#
# The decode half of the same question, on the engine's scheduler: how many times fewer steps does continuous batching
# need than static batching?

# %% name="run-distributions"
sizes = {"slots": 8, "requests": 64 if this.quick else 256}
for shape in ("fixed", "uniform", "exponential", "bimodal"):
    found = run_here("batching.length_distributions", {"shape": shape, **sizes})
    ratio = found["lens_max"] / found["lens_mean"]
    print(
        f"{shape:11} longest {ratio:4.1f} x mean; slot use static {found['static_slot_use']:4.0%}, "
        f"continuous {found['continuous_slot_use']:4.0%}; {found['speedup']:.2f} times fewer steps"
    )

# %% [markdown] name="build"
# ## Build
#
# **05.2** The bill of a static batch. Mind the first token: the prefill yields it, and the last token of an answer
# never goes through the model. So n output tokens take n - 1 decode positions.

# %% name="05.2" tags=["exercise"]
# exercise 05.2
from collections.abc import Sequence


def padding_waste(prompt_lens: Sequence[int], output_lens: Sequence[int]) -> dict[str, int]:
    """Return the positions of a padded static batch: prefill_used, prefill_padded, decode_used, decode_padded.

    One pass over the rectangle of prompts yields the first token of each row. Each later step computes one position
    per row, the token before, until the longest output (output_lens, at least 1 each) is complete; rows that are
    complete are padding. Raises ValueError if the lists differ in length. An empty batch: zeros.
    """
    raise NotImplementedError("05.2: two rectangles, and the part of each that is used")


# %% name="check-05.2"
this.check("05.2")

# %% [markdown] name="use-052"
# Does the formula describe a real static batch? `static_vs_continuous` runs prompts of one token on the engine's
# scheduler, four at a time, and counts steps. Your function gets the same batches.

# %% name="static-on-scheduler"
padding_waste = this.piece("05.2")
lens = [12, 40, 8, 25, 60, 9, 14, 33]
bills = [padding_waste([1] * 4, lens[at : at + 4]) for at in (0, 4)]
used = sum(bill["prefill_used"] + bill["decode_used"] for bill in bills)
share = used / sum(sum(bill.values()) for bill in bills)
found = run_here("batching.static_vs_continuous", {"slots": 4, "lens": lens})
print(f"padding_waste: {share:.4f} of the positions are used")
print(f"scheduler:     {found['static_slot_use']:.4f} static, {found['continuous_slot_use']:.4f} continuous")
this.record(static_share=share, static_slot_use=found["static_slot_use"])
this.holds("the formula describes a real static batch", abs(share - found["static_slot_use"]) < 1e-9)

# %% [markdown] name="build-053"
# **05.3** The ragged step. A row may be a whole prompt (start 0), a later chunk of one, or a single decode token:
# nothing but its length and its start differs. `seq_lens`, the third thing that attention needs, is start + length.

# %% name="05.3" tags=["exercise"]
# exercise 05.3
from collections.abc import Sequence
from itertools import accumulate


def pack(lens: Sequence[int], starts: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return (query_start_loc, positions, row_of_token) of a packed step.

    lens: tokens that each row computes in this step, 0 allowed. starts: tokens of each row computed before.
    query_start_loc: rows + 1 entries; row r owns tokens query_start_loc[r] to query_start_loc[r + 1] - 1.
    positions, row_of_token: per token, its place in its own sequence and its row.
    Raises ValueError if the lists differ in length.
    """
    raise NotImplementedError("05.3: running sums, and two entries per token")


# %% name="check-05.3"
this.check("05.3")

# %% [markdown] name="use-053"
# Compare with the engine's own input. With a budget of 64 tokens per step it cuts long prompts into chunks and mixes
# them with decodes. We record the input of every step and pack the same rows with your function.

# %% name="record-inputs"
from quizzes.experiments.context import worker_of

pack = this.piece("05.3")
steps = []
with LLM("shop", max_num_batched_tokens=64, enable_prefix_caching=False, enforce_eager=True) as small:
    inputs = worker_of(small).runner._inputs
    build = inputs.build

    def recording(*args, **kwargs):
        batch = build(*args, **kwargs)
        steps.append((batch.query_start.tolist(), batch.starts.tolist(), batch.positions.tolist()))
        return batch

    inputs.build = recording
    small.chat(chats, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)

agree = 0
for query_start_loc, starts, positions in steps:
    lens = np.diff(query_start_loc).tolist()
    agree += pack(lens, starts)[:2] == (query_start_loc, positions)
print(f"pack agrees with the engine in {agree} of {len(steps)} steps")
this.record(agree=agree, steps=len(steps))
this.holds("your function packs what the engine packs", agree == len(steps))
this.holds("a step has at most 64 tokens", max(query_start[-1] for query_start, _, _ in steps) <= 64)


# %% name="mixed-step"
def kinds(step):
    query_start_loc, starts, _ = step
    return set(zip(np.diff(query_start_loc) > 1, np.array(starts) > 0, strict=True))


mixed = max(steps, key=lambda step: (len(kinds(step)), len(step[1])))
query_start_loc, starts, positions = mixed
print("query_start_loc", query_start_loc)
for row, (begin, end) in enumerate(zip(query_start_loc, query_start_loc[1:], strict=False)):
    kind = "decode" if end - begin == 1 else "later chunk" if starts[row] else "first chunk or whole prompt"
    print(
        f"row {row:2}: {end - begin:2} tokens at positions {positions[begin]} to {positions[end - 1]}, {kind}"
    )
this.holds("a step mixes decodes with chunks of prompts", len(kinds(mixed)) == 3)

# %% [markdown] name="graphs"
# Padding survives where shapes must be fixed. A CUDA graph is captured for one number of tokens, so a decode batch is
# rounded up to the next captured size; vLLM also rounds small mixed steps up. It rounds the step, not each row. With
# vLLM's sizes:

# %% name="graph-padding"
batches = [1, 3, 9, 33, 129, 250]
found = run_here("batching.graph_padding", {"batches": batches})
for rows, padded in zip(batches, found["padded"], strict=True):
    print(f"{rows:3} rows run as {padded:3}: {1 - rows / padded:.0%} padding")

# %% [markdown] name="break"
# ## Break it
#
# Forget one thing at a time, and count the rows whose logits are not those of the row alone.

# %% name="break-masks" tags=["varies"]
pad_batch = this.piece("05.1")
changed = {
    side: compare(f"padded {side}, no mask", padded_logits(side, False)[0]) for side in ("left", "right")
}
last_column = padded_logits("right")[1][:, -1]
changed["last column"] = compare("padded right, last column read", last_column)
changed["packed"] = compare("packed, rows not told apart", packed_logits(use_rows=False))
for side in ("left", "right"):
    this.reveal(f"changed-{side}", changed[side])
this.record(changed=changed)
longest = max(range(len(prompts)), key=lambda row: prompt_lens[row])
off = (padded_logits("left", False)[0] - alone).abs().amax(1)
this.holds(
    "padded left, only the longest row is safe", [int(row) for row in (off < 1e-3).nonzero()] == [longest]
)
this.holds("padded right, nothing changes", changed["right"] == 0)
this.holds("the last column of every shorter row is padding", changed["last column"] == len(prompts) - 1)
this.holds("each request but the first reads those before it", changed["packed"] == len(prompts) - 1)

# %% [markdown] name="break-read"
# * **Left, no mask:** padding stands before the tokens, so they see it. Only the longest row is safe.
# * **Right, no mask:** nothing changes. Padding comes later, and causal attention hides it already. The bug
#   shows when the side changes, or in a bidirectional encoder.
# * **Right, last column:** the mask is right, but the last column of a short row is padding. Read the logits at the
#   row's own last token.
# * **Packed, rows not told apart:** each request reads all requests before it. In production that puts
#   one customer's data into another customer's answer.

# %% [markdown] name="break-positions"
# And positions? Give every packed token its place in the step instead of its place in its row:

# %% name="break-position-run" tags=["varies"]
honest = pack


def pack(lens, starts):
    query_start_loc, _, row_of_token = honest(lens, starts)
    return query_start_loc, list(range(sum(lens))), row_of_token


shifted = compare("packed, positions never restart", packed_logits())
pack = honest
this.record(shifted=shifted)
this.holds("nothing changes but rounding", shifted == 0)

# %% [markdown] name="break-position-read"
# Nothing changes but rounding: rotary embeddings depend on *differences* of positions, and those are right within a
# row. The bug appears in the next step: a decode has its position in the row, and the cached keys were rotated for
# their place in an earlier step. A test of one prefill step does not find it; a test that continues from the cache
# does.

# %% [markdown] name="say"
# ## Say it in 60 seconds

# %% name="say-it"
this.say()

# %% [markdown] name="questions"
# ## What you can answer now
#
# `engine/worker/model_input.py` builds the ragged input of every step; it is your `pack` with block tables and slots.

# %% name="ask"
this.questions()
