# %% [markdown] name="why"
# # Lesson 09: the scheduler, and preemption
#
# ## Why an interviewer asks
#
# Paging admits requests by what they need *now*. They grow, and one day the pool is empty in the middle of
# their answers. What then? Interviewers like this question because it separates diagrams from code:
#
# * Who is preempted, and why that one? What happens to its tokens?
# * Recompute or swap? With numbers, please.
# * The dashboard shows preemptions all day. Which setting do you change, and what does it cost?
#
# You write the scheduler: about 40 lines, six invariants.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("09")

# %% [markdown] name="predict"
# ## Predict
#
# Llama-3.1-8B on one H100, simulated with the engine's own scheduler (a roofline gives the time of each step; the
# decisions are exact). Requests arrive at random, with 300 to 700 prompt tokens and 200 to 600 output tokens. We keep
# the traffic and shrink only the pool of KV blocks.

# %% name="serve"
from engine.config import SchedulerConfig
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.run import make_engine
from engine.sim.workload import Lengths, Workload

num_requests = 150 if this.quick else 400
traffic = Workload(num_requests, 20.0, Lengths.parse("300-700"), Lengths.parse("200-600"), seed=9)
TTFT_SLO, TPOT_SLO = 2.0, 0.020


def serve(num_blocks, max_num_seqs=256, swap_gib=0.0, prefix_caching=False):
    """Serve the traffic; return the engine after the last token."""
    gpu = Deployment(get_model("llama-3.1-8b"), get_hardware("h100"))
    limits = SchedulerConfig(8192, max_num_seqs, 8192)
    sizes = {"num_blocks": num_blocks + 1, "enable_prefix_caching": prefix_caching}
    engine = make_engine(gpu, **sizes, scheduler=limits, swap_space=swap_gib)
    engine.run(traffic)
    return engine


# %% name="ample"
def figures(engine):
    """Return preemptions, tokens computed again as a share of the prompts, good requests per second."""
    recorder = engine.recorder
    finished = recorder.finished
    good = sum(record.ttft <= TTFT_SLO and record.tpot <= TPOT_SLO for record in finished)
    again = recorder.num_prefill_tokens / sum(record.request.prompt_len for record in finished) - 1
    return recorder.num_preemptions, again, good / max(record.last_token for record in finished)


ample = serve(29_000)
peak, best = ample.recorder.peak_used_blocks, figures(ample)[2]
print(f"with 29,000 blocks: peak use {peak:,} blocks by {ample.recorder.peak_running} requests at once")
print(f"goodput {best:.1f} requests per second: TTFT within 2 s, at most 20 ms per token, pauses included")

# %% name="predict-storm"
this.predict(
    "preemptions",
    ...,
    question=f"The pool gets 70 % of that peak. How many preemptions do the {num_requests} requests suffer?",
    unit="preemptions",
)

# %% name="predict-goodput"
this.predict(
    "goodput-kept",
    ...,
    question="And how many percent of the goodput are left with 70 % of the blocks?",
    unit="%",
)

# %% [markdown] name="first-piece"
# ## First piece: the victims
#
# Before you watch a pool run empty, say who has to go.
#
# **09.1** The victims. In a list that is sorted by importance they are at its end. Two reasons, both of them worth
# saying aloud: the newest request has the least work to lose (on average), and if the oldest were preempted, no
# request could be sure to finish.
#
# A scheduler sees a request as `Seq(id, known, computed, blocks)`:
#
# * `id`: its name;
# * `known`: tokens of its prompt and those generated so far;
# * `computed`: how many of them have KV; of a waiting request, the tokens that the prefix cache supplies;
# * `blocks`: blocks that it holds; of a waiting request, cached blocks that it would share without using a free one.

# %% name="09.1" tags=["exercise"]
# exercise 09.1
from lessons.given.scheduling import Seq


def choose_victims(running: list[Seq], need: int, free: int) -> list[str]:
    """Return the ids to preempt so that `need` blocks are free: as few as possible, the least important first.

    running: most important first. A victim frees all its blocks. Raises MemoryError if not even all of them suffice.
    """
    raise NotImplementedError("09.1: from the tail, until enough blocks are free")


# %% name="check-09.1"
this.check("09.1")

# %% [markdown] name="run"
# ## Run it

# %% name="shrink"
shares = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
sweep = {share: figures(serve(int(peak * share))) for share in shares}
print("blocks   preemptions   computed again   good requests/s")
for share, (preemptions, again, good) in sweep.items():
    print(f"{share:6.0%} {preemptions:13} {again:15.0%} {good:17.1f}")
this.reveal("preemptions", sweep[0.7][0])
this.reveal("goodput-kept", round(100 * sweep[0.7][2] / best, 1))
this.record(preemptions=sweep[0.7][0], goodput_kept=sweep[0.7][2] / best)
this.holds("a victim's KV is computed again", sweep[1.0][1] == 0 < sweep[0.9][1] < sweep[0.7][1])
this.holds("goodput falls with the memory", sweep[0.9][2] > sweep[0.7][2] > sweep[0.5][2])

# %% [markdown] name="storm"
# This is a *preemption storm*, and it has two parts. A victim's KV is computed twice, and that time is taken from the
# others. And with less memory fewer requests run at once: below some point the server completes less than arrives, the
# queue grows, and TTFT misses its target. The plot below tells which part weighs more.

# %% [markdown] name="live"
# Simulated requests have no text. Does a preemption change an answer? The real engine, the shipped model, and a pool
# in which the same twelve requests cannot stay together:

# %% name="run-live"
from engine import LLM, SamplingParams
from engine.zoo.corpus import draw_cases

prompts = sorted((case.prompt for case in draw_cases(48, seed=9)), key=len)[:12]
params = SamplingParams(temperature=0, max_tokens=64 if this.quick else 96, ignore_eos=True)


def live(num_blocks, **settings):
    """Return the tokens of all requests, and preemptions and computed prompt tokens over all steps."""
    sizes = {"num_gpu_blocks_override": num_blocks, "block_size": 16, "enable_prefix_caching": False}
    with LLM("shop", **sizes, **settings) as llm:
        core, counts = llm.llm_engine.engine_core, [0, 0]
        real_step = core.step

        def step():
            outputs = real_step()
            counts[0] += core.scheduler.stats.num_preempted
            counts[1] += core.scheduler.stats.num_prefill_tokens
            return outputs

        core.step = step
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs], *counts


# %% name="compare-live"
roomy = live(1024)
tight = live(160)
swapped = live(160, preemption_mode="swap", swap_space=0.1)
for name, (_, preemptions, computed) in (("roomy", roomy), ("recompute", tight), ("swap", swapped)):
    print(f"{name:10} {preemptions:3} preemptions, {computed:6,} prompt tokens computed")
print("same tokens in all three:", roomy[0] == tight[0] == swapped[0])
this.record(live_preemptions=tight[1], same_tokens=roomy[0] == tight[0] == swapped[0])
this.holds("a preemption changes no answer", tight[1] > 0 and roomy[0] == tight[0] == swapped[0])
this.holds("recompute repeats work", tight[2] > 1.1 * max(roomy[2], swapped[2]))

# %% [markdown] name="not-lost"
# The tokens that a victim generated are not lost: they become part of what it has to compute again, like a longer
# prompt, in one step and not one by one. The user sees a pause between two tokens. With this engine it is never another
# text; with kernels that round by the shape of a step, a token computed again may differ in its last bits.
#
# vLLM V1 preempts by recompute; swapping victims to host memory was in V0. This engine has both.

# %% [markdown] name="plot"
# ## Plot
#
# The same sweep with three ways to bring victims back: recompute everything; recompute what the prefix cache lost;
# swap to host memory.

# %% name="plot-cliff"
from lessons.course.plots import COLOURS, figure, style

modes = {
    "recompute": {},
    "recompute, prefix cache": {"prefix_caching": True},
    "swap": {"swap_gib": 16.0},
}
drawing, axes = figure(width=7.2)
drawing.clear()
left, right = drawing.subplots(1, 2, sharex=True)
for axes, title in ((left, "preemptions"), (right, "good requests per second")):
    style(axes)
    axes.set(title=title, xlabel="blocks, % of the peak")
swept = {}
for name, settings in modes.items():
    rows = swept[name] = [figures(serve(int(peak * share), **settings)) for share in shares]
    left.plot([100 * share for share in shares], [row[0] for row in rows], label=name)
    right.plot([100 * share for share in shares], [row[2] for row in rows], label=name)
left.invert_xaxis()
left.legend()
this.plot(drawing)

# %% name="counts-by-mode"
for name, rows in swept.items():
    print(f"{name:24} preemptions", *(f"{row[0]:4}" for row in rows))
swaps = swept["swap"]
if not this.quick:
    by_share = list(zip(*([row[0] for row in rows] for rows in swept.values()), strict=True))
    alike = all(max(counts) <= 1.1 * min(counts) for counts in by_share[2:])
    this.holds("from 80 % down preemptions hardly depend on the mode", alike)
    this.holds("at 90 % recompute has nearly twice as many", 1.7 < swept["recompute"][1][0] / swaps[1][0] < 2)
    this.holds("swap computes almost nothing again", max(row[1] for row in swaps) < 0.02)
    this.holds("no mode removes the other part", max(rows[-1][2] for rows in swept.values()) < best / 4)

# %% [markdown] name="read-plot"
# From 80 % of the blocks down, preemptions hardly depend on the mode: they are a matter of memory. (At 90 % recompute
# has nearly twice as many as swap: repeated work keeps requests in the pool for longer.) Swap computes almost nothing
# again, so the distance between its line and that of recompute is the price of the repeated work. The rest of the fall
# has the other cause, and no mode removes it. The remedies are more memory, fewer bytes per token (lesson 13), or less
# traffic per replica.

# %% [markdown] name="explore"
# ## Explore: how many should run?
#
# `max_num_seqs` is the brake. The safe value, blocks divided by the blocks of the longest request, never preempts.
# Is it the best?


# %% name="draw-explore"
def pressure(blocks, max_num_seqs, mode):
    engine = serve(blocks, max_num_seqs, **modes[mode])
    preemptions, again, good = figures(engine)
    ttft, tpot = (
        sorted(values)[int(0.95 * len(values))]
        for values in zip(*((r.ttft, r.tpot) for r in engine.recorder.finished), strict=True)
    )
    drawing, axes = figure(
        xlabel="TTFT (s)", ylabel="ms per token", title="every request; inside the lines both SLOs are met"
    )
    finished = engine.recorder.finished
    for name, colour, was in (("never preempted", "blue", False), ("preempted", "vermillion", True)):
        some = [r for r in finished if (r.num_preemptions > 0) is was]
        points = [r.ttft for r in some], [1e3 * r.tpot for r in some]
        axes.plot(*points, linestyle="", markersize=3, color=COLOURS[colour], label=f"{name}: {len(some)}")
    axes.axvline(TTFT_SLO, color=COLOURS["black"], linewidth=0.8)
    axes.axhline(1e3 * TPOT_SLO, color=COLOURS["black"], linewidth=0.8)
    axes.legend()
    return drawing, (
        f"{preemptions} preemptions, {again:.0%} of the prompt tokens computed again\n"
        f"P95: TTFT {ttft:.1f} s, {1e3 * tpot:.1f} ms per token\n"
        f"goodput {good:.1f} requests per second; {best:.1f} with ample memory"
    )


# %% name="explore-pressure"
this.explore(
    "pressure",
    pressure,
    blocks=(1500, 5000, int(0.7 * peak), 100),
    max_num_seqs=(16, 128, 128, 2),
    mode=list(modes),
)
if not this.quick:
    safe, some, many = (figures(serve(int(0.7 * peak), slots)) for slots in (64, 66, 72))
    this.holds("the most goodput lies where some requests are preempted", safe[0] == 0 < some[0] < many[0])
    this.holds("and neither with none nor with many", some[2] > max(safe[2], many[2]))

# %% [markdown] name="explore-questions"
# Keep the blocks and lower `max_num_seqs` until no request is preempted. What happened to TTFT, and to goodput? Then
# look for the value with the most goodput. It usually lies where *some* requests are preempted: a pool that never
# preempts keeps memory for lengths that most requests never reach.

# %% [markdown] name="invariants"
# ## Build
#
# **09.2** The scheduler. No prefill phase, no decode phase: a request has `known` tokens and KV for `computed` of them,
# and a row computes the rest. (Lesson 10 cuts rows into chunks.) Six invariants, and each has a check:
#
# 1. A step computes at most `token_budget` tokens.  2. At most `max_num_seqs` requests run.
# 3. Blocks suffice for all rows, after the preemptions.  4. A victim has no row.
# 5. Running requests go first, the most important first; victims come from the tail.
# 6. Waiting requests are admitted in order, none overtakes, none in a step that preempts.
#
# The plan of a step is `Plan(rows, preempted)`:
#
# * `rows`: a list of `(id, tokens)`, the tokens that a request computes in this step; a waiting request with a row is
#   admitted;
# * `preempted`: ids of running requests that free all their blocks and wait again, before the rows run.
#
# A check serves random workloads in a small simulator and shows the smallest one that breaks its invariant.

# %% name="09.2" tags=["exercise"]
# exercise 09.2
from lessons.given.scheduling import Plan, Seq


class Scheduler:
    """Plans steps over a paged cache: running requests first, then whole prompts from the queue."""

    def __init__(self, max_num_seqs: int, token_budget: int, block_size: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget
        self.block_size = block_size

    def schedule(self, running: list[Seq], waiting: list[Seq], num_free_blocks: int) -> Plan:
        """Return what the next step computes. A row computes all missing tokens of its request, known - computed.

        running: most important first. Each gets a row, until one exceeds the budget that is left: neither it nor a
            later one gets one. A row needs blocks for all known tokens. While they are not free, the last of `running`
            is preempted, in the end the request itself.
        waiting: queue order, and only if nothing was preempted. A request is admitted if fewer than max_num_seqs run
            and its row fits into budget and free blocks; else neither it nor a later one is.
        """
        raise NotImplementedError("09.2: one loop over running, one over waiting")


# %% name="check-09.2"
this.check("09.2")

# %% [markdown] name="swap"
# **09.3** Recompute or swap. A swap moves blocks twice over the link between GPU and host. Recomputing costs a bit per
# token (the weights' arithmetic) and a bit per pair of tokens (attention), so its cost also has a square. They cross if
# recomputing a short victim is cheaper. Where the link moves a token faster than the GPU computes one, they never do.


# %% name="09.3" tags=["exercise"]
# exercise 09.3
def recompute_or_swap(
    num_tokens: int,
    block_size: int,
    block_bytes: int,
    link_bytes_per_second: float,
    seconds_per_token: float,
    seconds_per_pair: float,
) -> tuple[str, float]:
    """Return ("recompute" or "swap", seconds): the cheaper way to bring back a victim with num_tokens tokens of KV.

    swap: whole blocks go over the link twice, out and in. recompute: seconds_per_token for each token, and
    seconds_per_pair for each (query, key) pair of causal attention, a token's pair with itself included.
    Equal costs: recompute, which needs no host memory.
    """
    raise NotImplementedError("09.3: two costs, and the smaller one")


# %% name="check-09.3"
this.check("09.3")

# %% [markdown] name="break-even"
# With the H100's datasheet at 60 % of the peak: 2 FLOP per weight and token, and 4 per pair, head, head dimension and
# layer. Llama 2 7B has 32 KV heads; Llama 3.1 8B has 8 (GQA), so a quarter of the bytes per token. Links: PCIe 4 and 5
# with 16 lanes, and the NVLink-C2C of a Grace Hopper, at what copies reach in practice.

# %% name="break-even-table"
recompute_or_swap = this.piece("09.3")
flops = 0.6 * get_hardware("h100").peak("bfloat16")
lengths = (512, 4096, 32_768)
print(f"{'':28}" + "".join(f"{f'{tokens:,} tokens':>19}" for tokens in lengths))
for name, weights in (("llama-2-7b", 6.7e9), ("llama-3.1-8b", 8.0e9)):
    model = get_model(name)
    block_bytes = 16 * 2 * model.num_layers * model.num_kv_heads * model.head_dim * 2
    per_pair = 4 * model.num_layers * model.num_heads * model.head_dim / flops
    for link, speed in (("PCIe 4", 20e9), ("PCIe 5", 45e9), ("NVLink-C2C", 350e9)):
        cells = []
        for tokens in lengths:
            choice, seconds = recompute_or_swap(tokens, 16, block_bytes, speed, 2 * weights / flops, per_pair)
            cells.append(f"{choice:>10} {1e3 * seconds:5.0f} ms")
        print(f"{name:13} {link:14}" + "".join(f"{cell:>19}" for cell in cells))
        found = "".join(cell.split()[0][0] for cell in cells)
        expected = {("llama-2-7b", "PCIe 4"): "rrr", ("llama-2-7b", "PCIe 5"): "rss"}
        this.holds("the answer depends on link and bytes", found == expected.get((name, link), "sss"))

# %% [markdown] name="break-even-caveat"
# Beware of rules such as "recompute below 8k tokens": the answer depends on the link and on the bytes per token. The
# older model recomputes at every length of the table over PCIe 4, and swaps from the middle one on over PCIe 5. With a
# quarter of the bytes, swap is cheaper at all of them. What
# the formula leaves out: a transfer can overlap with computing, pinned host memory must exist, weights are read once
# per step however short the victim is, and the prefix cache may still hold part of it.

# %% [markdown] name="break"
# ## Break it: preempt the oldest
#
# One thing wrong: who is at the tail? We drive your scheduler (or ours) ourselves. Twelve requests arrive ten steps
# apart, each with 40 prompt tokens and 120 to generate; the pool holds two of them at full length. `newest` is the
# rule. `oldest` shows the scheduler the running requests in reverse.

# %% name="machine"
from lessons.given.scheduling import Seq

Scheduler = this.piece("09.2")
NUM, BLOCKS, PROMPT, OUTPUT = 12, 20, 40, 120


class State:
    """Twelve requests, by index: tokens known and computed, blocks held, preemptions, last step."""

    def __init__(self):
        self.known, self.computed, self.blocks = [PROMPT] * NUM, [0] * NUM, [0] * NUM
        self.running, self.preemptions, self.finished = [], [0] * NUM, [None] * NUM

    def waiting(self, step):
        arrived = range(min(NUM, step // 10 + 1))
        return [i for i in arrived if i not in self.running and self.finished[i] is None]

    def seqs(self, indices):
        return [Seq(str(i), self.known[i], self.computed[i], self.blocks[i]) for i in indices]


# %% name="drive"
def drive(order):
    """Serve all requests; return the state, the number of steps, and the tokens computed."""
    scheduler, state, step, total = Scheduler(NUM, 2048, 16), State(), 0, 0
    while None in state.finished:
        running, waiting = state.seqs(order(state.running)), state.seqs(state.waiting(step))
        plan = scheduler.schedule(running, waiting, BLOCKS - sum(state.blocks))
        for i in map(int, plan.preempted):
            state.running.remove(i)
            state.computed[i], state.blocks[i] = 0, 0
            state.preemptions[i] += 1
        for name, count in plan.rows:
            i, total = int(name), total + count
            state.running = sorted({*state.running, i})
            state.computed[i], state.blocks[i] = state.known[i], -(-state.known[i] // 16)
            state.known[i] += 1
            if state.known[i] == PROMPT + OUTPUT:
                state.running.remove(i)
                state.blocks[i], state.finished[i] = 0, step
        step += 1
    return state, step, total


# %% name="predict-oldest"
newest = drive(lambda running: running)
print(f"newest: the first request has its last token in step {newest[0].finished[0]}")
this.predict(
    "first-finishes",
    ...,
    question="In which step does the first request get its last token, if the oldest are preempted?",
    unit="(step)",
)

# %% name="run-oldest"
oldest = drive(lambda running: running[::-1])
this.reveal("first-finishes", oldest[0].finished[0])
for name, (state, steps, total) in (("newest", newest), ("oldest", oldest)):
    print(f"{name}: {steps} steps, {total} tokens computed, {sum(state.preemptions)} preemptions")
    print(f"   finished in step {state.finished}\n   preempted        {state.preemptions}")
this.record(newest_first=newest[0].finished[0], oldest_first=oldest[0].finished[0])
this.holds("about the same work", abs(oldest[2] / newest[2] - 1) < 0.05)
this.holds("in about the same time", abs(oldest[1] / newest[1] - 1) < 0.05)
done, lost = newest[0].finished, oldest[0].preemptions
this.holds("newest: in the order of arrival", done == sorted(done) and newest[0].preemptions[0] == 0)
this.holds("oldest: the first is preempted most", lost[0] == max(lost))
this.holds("oldest: later ones overtake it", oldest[0].finished[0] > min(oldest[0].finished))

# %% [markdown] name="order"
# Look at the totals first: about the same work in about the same time. A throughput benchmark would not notice. But
# with `newest` requests finish in the order of arrival, and the first one is never disturbed; with `oldest` the first
# one is preempted most often and later ones overtake it: no request has a bound on its waiting time.
# Preempting from the tail of a fixed order is what guarantees progress.

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
