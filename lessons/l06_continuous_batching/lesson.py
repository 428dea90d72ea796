# %% [markdown] name="why"
# # Lesson 06: continuous batching
#
# ## Why an interviewer asks
#
# "What did Orca change?" The short answer is *iteration-level scheduling*: requests join and leave a batch between two
# steps. The follow-ups separate candidates who have counted from candidates who have read:
#
# * How many steps does it save on *these* lengths? Always?
# * What happens to a request that arrives while a batch runs?
# * Your utilisation is 60 %. Is that the scheduler's fault, or the workload's?
#
# You write the loop, and a bound that answers the third question.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("06")

# %% [markdown] name="predict"
# ## Predict
#
# Twelve requests, four slots, one token per slot and step. Prompts are one token long, so that only decoding counts.
# The lengths are those of answers: most are short, a few are long.

# %% name="workload"
slots = 4
lens = [7, 60, 9, 12, 5, 33, 8, 21, 6, 52, 10, 14]
print(f"{len(lens)} requests, {sum(lens)} tokens, the longest has {max(lens)}")

# %% name="predict-static"
this.predict(
    "static-steps",
    ...,
    question="Static batching: groups of four in this order; a group ends with its longest request. How many steps?",
    unit="steps",
)

# %% name="predict-continuous"
this.predict(
    "continuous-steps",
    ...,
    question="Continuous batching: a free slot is taken before the next step, in this order. How many steps?",
    unit="steps",
)

# %% [markdown] name="first-piece"
# ## First piece: the loop
#
# **06.1** The admission loop. Between two steps: finished requests leave, waiting ones take their slots. Then every
# running request gets one token. vLLM's scheduler does the same with a budget of tokens in place of one per slot, and
# blocks of memory in place of slots; lessons 09 and 10 add both.


# %% name="06.1" tags=["exercise"]
# exercise 06.1
class ContinuousBatcher:
    """Serve requests in a fixed number of slots, one token per slot and step.

    A request takes a free slot before the next step, in order of arrival, and leaves it right after its last token.
    """

    def __init__(self, slots: int) -> None:
        """Start with all slots free. Raises ValueError for fewer than one slot."""
        raise NotImplementedError("06.1: a queue of waiting requests, and what each running one still needs")

    def add(self, request_id: str, num_tokens: int) -> None:
        """Queue a request for num_tokens >= 1 tokens."""

    def step(self) -> list[str]:
        """Admit, generate one token for each running request, and return the ids that finished, in order of admission.

        A step without any request returns [].
        """

    def running(self) -> list[str]:
        """Return the ids that hold a slot now, in order of admission."""


# %% name="check-06.1"
this.check("06.1")

# %% [markdown] name="run"
# ## Run it
#
# The engine's own scheduler runs both: once as it is, once with admission closed until the whole group is done. It
# plans real steps; only the tokens are scripted.

# %% name="run-both"
from quizzes.experiments.running import run_here

run = run_here("batching.static_vs_continuous", {"slots": slots, "lens": lens})
this.reveal("static-steps", run["static_steps"])
this.reveal("continuous-steps", run["continuous_steps"])
print(f"slot use: static {run['static_slot_use']:.0%}, continuous {run['continuous_slot_use']:.0%}")
this.record(static=run["static_steps"], continuous=run["continuous_steps"])

# %% [markdown] name="use-batcher"
# Your loop on the twelve requests. It must take as many steps as the engine's scheduler, which does not know the
# lengths in advance either.

# %% name="run-batcher"
ContinuousBatcher = this.piece("06.1")
mine = ContinuousBatcher(slots)
for number, length in enumerate(lens):
    mine.add(str(number), length)
finished = {}
for step in range(1, sum(lens) + 1):
    for name in mine.step():
        finished[int(name)] = step
    if len(finished) == len(lens):
        break
print(f"{step} steps; the engine took {run['continuous_steps']}")
last_steps = [finished[number] - 1 for number in range(len(lens))]  # the engine counts steps from 0
print("every request ends in the same step as in the engine:", last_steps == run["continuous_finished"])
this.record(steps=step, same_ends=last_steps == run["continuous_finished"])
this.holds(
    "your loop takes as many steps",
    step == run["continuous_steps"] and last_steps == run["continuous_finished"],
)

# %% [markdown] name="same-tokens"
# Steps are a scheduler's currency, but a user sees tokens. The live model must say the same in any batch: here are four
# requests on two slots, and each of them alone.

# %% name="run-live"
from engine import LLM, SamplingParams

titles = ["Silver Harbor", "Quiet Moon", "Paper Tigers", "North Star"]
chats = [[{"role": "user", "content": f"Tell me about {title}."}] for title in titles]
with LLM("shop", max_num_seqs=2) as llm:
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (6, 24, 8, 16)]
    together = [out.outputs[0].token_ids for out in llm.chat(chats, params, use_tqdm=False)]
    alone = [
        llm.chat([chat], one, use_tqdm=False)[0].outputs[0].token_ids
        for chat, one in zip(chats, params, strict=True)
    ]
print("same tokens on two slots and alone:", together == alone)
this.record(same_tokens=together == alone)
this.holds("the live model says the same in any batch", together == alone)

# %% [markdown] name="plot"
# ## Plot
#
# One bar is one request in one slot. White is a slot that computes nothing: the hardware reads all weights in that step
# anyway, so an idle slot costs as much as a busy one.

# %% name="draw-gantt"
from lessons.course.plots import COLOURS, figure


def place(lens, slots, continuous):
    """Return (request, slot, start, length) for each request; a static group starts when all slots are free."""
    free, bars = [0] * slots, []
    for number, length in enumerate(lens):
        if not continuous and number % slots == 0:
            free = [max(free)] * slots
        slot = min(range(slots), key=lambda index: (free[index], index))
        bars.append((number, slot, free[slot], length))
        free[slot] += length
    return bars


def gantt(axes, bars, title, names="0123456789AB"):
    cycle = ("blue", "orange", "green", "sky", "purple")
    for number, slot, start, length in bars:
        axes.barh(slot, length, left=start, height=0.8, color=COLOURS[cycle[number % 5]], edgecolor="white")
        axes.text(start + length / 2, slot, names[number], ha="center", va="center", fontsize=7)
    axes.set(title=title, xlabel="step", ylabel="slot", yticks=range(max(bar[1] for bar in bars) + 1))


# %% name="plot-gantt"
for continuous, name in ((False, "static"), (True, "continuous")):
    drawing, axes = figure(6.4, 2.0)
    bars = place(lens, slots, continuous)
    gantt(axes, bars, f"{name}: {max(start + length for _, _, start, length in bars)} steps")
    axes.set_xlim(0, run["static_steps"])
    this.plot(drawing)

# %% [markdown] name="read-plot"
# Static batching wastes the area to the right of every short request in a group. Continuous batching wastes only the
# end, where fewer requests are left than slots: the *tail*. Behind the first group, short requests gain most: waiting
# was the largest part of their latency. Request 4 waits for a whole group above, and starts after the first short
# request below.

# %% name="latency"
waits = {
    name: [start for _, _, start, _ in place(lens, slots, continuous)]
    for name, continuous in (("static", False), ("continuous", True))
}
for name, starts in waits.items():
    print(
        f"{name:10} mean wait {sum(starts) / len(starts):5.1f} steps, request 4 starts after step {starts[4]}"
    )
ends = {
    name: [wait + length for wait, length in zip(starts, lens, strict=True)] for name, starts in waits.items()
}
gains = [static / now for static, now in zip(ends["static"], ends["continuous"], strict=True)]
for group in (range(4, 8), range(8, 12)):
    by_length = [gains[number] for number in sorted(group, key=lens.__getitem__)]
    this.holds("short requests gain most", by_length == sorted(by_length, reverse=True))
this.holds("request 4 waits for a whole group", waits["static"][4] == max(lens[:slots]))
this.holds("or for the first short request", waits["continuous"][4] == min(lens[:slots]))
bars = place(lens, slots, True)
last = max(start for _, _, start, _ in bars)
busy = sum(min(length, last - start) for _, _, start, length in bars)
this.holds("no slot is idle before the last request starts", busy == slots * last)

# %% [markdown] name="tie"
# When does it gain nothing? When all requests of a group end together, as with equal lengths; and when there are no
# more requests than slots: one group, and both wait for its longest. With more requests than slots, a tie of unequal
# lengths is rare. The means of the next distributions are nearly the same; the factor grows with the spread:

# %% name="spread"
spread = []
for shape in ("fixed", "uniform", "bimodal", "exponential", "lognormal"):
    found = run_here("batching.length_distributions", {"shape": shape, "requests": 64 if this.quick else 128})
    print(
        f"{shape:12} mean {found['lens_mean']:5.1f}, longest {found['lens_max']:4}: "
        f"{found['speedup']:.2f} x fewer steps"
    )
    spread.append((found["lens_max"], found["speedup"], found["lens_mean"]))
longest, factors, means = zip(*sorted(spread), strict=True)
this.holds("equal lengths gain nothing", factors[0] == 1)
if not this.quick:
    this.holds("the means are nearly the same", max(means) < 1.1 * min(means))
    this.holds("the factor grows with the spread", list(factors) == sorted(factors))
one_group = {
    max(start + length for _, _, start, length in place(lens[:4], 4, kind)) for kind in (True, False)
}
this.holds("no more requests than slots gain nothing", one_group == {max(lens[:4])})

# %% [markdown] name="explore"
# ## Explore
#
# The first eight requests, `A:7` to `H:21` (name and tokens), on three slots. Drag them into another order, or change
# the controls; the line below the picture counts the steps.
#
# 1. The order of arrival needs 60 steps. Why can no order need fewer?
# 2. Find an order that needs more than 75. Where does `B:60` stand in it?
# 3. No slot is idle before the last request starts. Why, then, does no order need twice the steps of the best one? You
#    write this bound in 06.3.

# %% name="explore-gantt"
from lessons.course.widgets import Order

named = {f"{chr(65 + number)}:{length}": length for number, length in enumerate(lens[:8])}


def draw_order(order, slots, policy):
    chosen = [named[name] for name in order]
    bars = place(chosen, slots, policy == "continuous")
    steps = max(start + length for _, _, start, length in bars)
    drawing, axes = figure(6.4, 2.2)
    gantt(axes, bars, f"{policy}, {slots} slots", names=[name[0] for name in order])
    use = sum(chosen) / (slots * steps)
    return drawing, f"{policy}: {steps} steps for {sum(chosen)} tokens on {slots} slots, slot use {use:.0%}"


this.explore("gantt", draw_order, order=Order(list(named)), slots=(1, 6, 3), policy=["continuous", "static"])
first, worse = (
    max(start + length for _, _, start, length in place(some, 3, True))
    for some in (lens[:8], sorted(lens[:8]))
)
this.holds("the order of arrival needs 60 steps, and no order fewer", first == 60 == max(lens[:8]))
this.holds("the longest request last needs more than 75", 75 < worse < 2 * first)

# %% [markdown] name="build"
# ## Build
#
# **06.2** The baseline, in closed form, and the figure that dashboards call utilisation.


# %% name="06.2" tags=["exercise"]
# exercise 06.2
def static_steps(lens: list[int], slots: int) -> int:
    """Return the steps of static batching: groups of `slots` requests in order, each as long as its longest."""
    raise NotImplementedError("06.2: add up the longest request of each group")


def slot_use(lens: list[int], slots: int, steps: int) -> float:
    """Return the share of slot-steps that made a token, 0 to 1. No steps: 0."""
    raise NotImplementedError("06.2: tokens over slots times steps")


# %% name="check-06.2"
this.check("06.2")

# %% [markdown] name="bound"
# **06.3** "Is 60 % use the scheduler's fault?" Compare with the least that *any* order could need. And no order is
# worse than Graham's bound for list scheduling (1966): less than twice the least.


# %% name="06.3" tags=["exercise"]
# exercise 06.3
def bounds(lens: list[int], slots: int) -> tuple[int, int]:
    """Return (least, most) steps that continuous batching can need for these output lengths, whatever their order.

    least: the longest request, or all tokens spread evenly over the slots, whichever takes longer.
    most: Graham's bound for list scheduling, floor((total - longest) / slots) + longest. No requests: (0, 0).
    """
    raise NotImplementedError(
        "06.3: two reasons for the least; for the most, all slots are busy until the last starts"
    )


# %% name="check-06.3"
this.check("06.3")

# %% [markdown] name="use-bounds"
# Both answers for our twelve requests, and for 2,000 random orders of them.

# %% name="run-bounds"
from random import Random

static_steps, slot_use = this.piece("06.2")
bounds = this.piece("06.3")
least, most = bounds(lens, slots)
rng = Random(0)
orders = [rng.sample(lens, len(lens)) for _ in range(200 if this.quick else 2000)]
steps = [max(start + length for _, _, start, length in place(order, slots, True)) for order in orders]
print(f"any order: {least} to {most} steps; random orders need {min(steps)} to {max(steps)}")
ours = run["continuous_steps"]
print(f"in order of arrival: {ours} steps, use {slot_use(lens, slots, ours):.0%}")
print(f"the best possible use on this workload: {slot_use(lens, slots, least):.0%}")
groups = [static_steps(order, slots) for order in orders]
ties = sum(batch == step for batch, step in zip(groups, steps, strict=True))
this.holds("a tie of unequal lengths is rare", ties < 0.05 * len(orders))
this.holds("no order is outside the bounds", least <= min(steps) <= max(steps) <= most < 2 * least)

# %% [markdown] name="break"
# ## Break it: collect a batch first
#
# A server that collects requests looks like batching and is not continuous. This one starts a batch when the batch
# before it has ended, *and* either four requests wait or the oldest of them has waited `window` steps.
#
# Six requests, 0 to 5, arrive at the steps in `arrivals` and need as many tokens as stand in `lens`. Request 4 arrives
# one step after the first batch has started. For what does it wait: for its window, or for something else? Does a
# window of 0 help? Decide before you run the cell.

# %% name="run-window"
asked = {"slots": 4, "arrivals": [0, 1, 3, 8, 9, 20], "lens": [5, 20, 4, 6, 12, 3]}
collected = {window: run_here("batching.batch_window", {**asked, "window": window}) for window in (10, 0)}
continuous = collected[10]
print("steps that requests 0 to 5 wait:")
for window, found in collected.items():
    print(f"window {window:2}   {found['collected_waits']}, mean {found['collected_mean_wait']:.1f}")
print(f"continuous  {continuous['continuous_waits']}, mean {continuous['continuous_mean_wait']:.1f}")
waits, means = (
    [found[f"collected_{part}"] for found in collected.values()] for part in ("waits", "mean_wait")
)
this.holds("with a window of ten the first batch starts at step 8", waits[0][:4] == [8, 7, 5, 0])
this.holds("request 4 waits 19 steps, until request 1 has ended", waits[0][4] == 19 == 8 + 20 - 9)
this.holds("request 0 goes alone without a window", waits[1][0] == 0 < min(waits[1][1:]))
this.holds("the mean wait hardly falls", [f"{mean:.1f}" for mean in means] == ["7.8", "7.3"])
this.holds("continuous batching has no window", continuous["continuous_waits"] == [0] * 6)

# %% [markdown] name="read-break"
# Request 4 waits 19 steps, more than its window of ten: a batch runs, and ends with its longest request. A window of 0
# does not help: request 0 starts alone, the others wait for a batch to end, and the mean wait falls only from 7.8 steps
# to 7.3.
#
# Continuous batching has no window: the batch of the next step is whatever waits now. That is why "what batch size do
# you use?" has no single answer on vLLM. `max_num_seqs` is only the limit.

# %% [markdown] name="say"
# ## Say it in 60 seconds
#
# Aloud first. The probes below test what you said; prose is not graded.

# %% name="say-it"
this.say()

# %% [markdown] name="now"
# ## What you can answer now

# %% name="questions"
this.questions()
