# ruff: noqa: F401  exercise cells import what their solution needs
# %% [markdown] name="why"
# # Lesson 14: parallelism and disaggregation
#
# ## Why an interviewer asks
#
# "How would you serve a 70B model?" tests whether you can say what each split *sends*:
#
# * Tensor parallel (TP) cuts every matrix. Two messages per layer, in every step.
# * Pipeline parallel (PP) cuts the list of layers. One message per boundary, and stages that wait.
# * Data parallel (DP) copies the model. A dense model sends no messages; a router decides where requests go.
# * Disaggregation cuts the work: prompts here, tokens there, and the KV cache travels once per request.
#
# You build the sharded MLP, the router and the price of a hand-over.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("14")

# %% [markdown] name="predict"
# ## Predict
#
# `shop` has 6 layers. With `tensor_parallel_size=2` two processes hold half of every matrix each, and exchange
# messages over gloo. An embedding split by vocabulary needs a sum too, and the logits of the two halves must be put
# together.

# %% name="predict-collectives"
this.predict(
    "collectives",
    ...,
    question="How many collectives (all-reduces and gathers) does the sampling rank take part in per decode step?",
    unit="calls",
)

# %% name="predict-link"
this.predict(
    "pcie-share",
    ...,
    question="Llama-3.1 70B on 8 H100, one step over 4,096 prompt tokens. What percentage of the step is communication "
    "if the GPUs are connected by PCIe 5 instead of NVLink?",
    unit="percent",
)

# %% name="predict-split"
this.predict(
    "split-loses",
    ...,
    question="Six requests per second. Two GPUs that both do everything, with a token budget of 8,192, or one for "
    'prompts and one for tokens. Which latency becomes worse by the split: "TTFT" or "ITL p99"?',
    options=["TTFT", "ITL p99"],
)

# %% [markdown] name="first-piece"
# ## First piece: a sharded MLP
#
# **14.1** Megatron's trick: split the first layer by outputs and the second by inputs. Between the two, every rank
# works alone; one all-reduce at the end joins them. In torch's layout [out, in], "column-parallel" cuts dim 0: the
# names come from the formula x W, where W is [in, out].

# %% name="14.1" tags=["exercise"]
# exercise 14.1
from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import linear, silu


def column_shard(weight: Tensor, rank: int, size: int) -> Tensor:
    """Return this rank's part of weight [out, in] in a column-parallel layer: some outputs, [out / size, in].

    Parts are contiguous and in the order of the ranks. Raises ValueError if size does not divide them.
    """
    raise NotImplementedError("14.1: the rank's share of the outputs")


def row_shard(weight: Tensor, rank: int, size: int) -> Tensor:
    """Return this rank's part of weight [out, in] in a row-parallel layer: some inputs, [out, in / size]."""
    raise NotImplementedError("14.1: the rank's share of the inputs")


def parallel_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, all_reduce: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return down(silu(gate(x)) * up(x)) [tokens, hidden], the same on every rank, with a single all_reduce.

    gate, up: this rank's shards [inner / size, hidden]; down: [hidden, inner / size]. all_reduce(tensor) returns the
    sum of the ranks' tensors.
    """
    raise NotImplementedError("14.1: compute with the shards, then sum over the ranks once")


# %% name="check-14.1"
this.check("14.1")

# %% [markdown] name="use-141"
# The MLP of layer 2 of `shop`, on 1, 2 and 4 ranks. `RankGroup` runs one thread per rank and counts. With several ranks
# the difference is not zero: the parts of a sum are added in another order. That is why TP=2 and TP=1 may disagree in
# the last bits, and why "same tokens" is checked below and not assumed.

# %% name="use-mlp" tags=["varies"]
import torch

from lessons.given.model import PlainModel
from lessons.given.ranks import RankGroup

column_shard, row_shard, parallel_mlp = this.piece("14.1")
weights = PlainModel.load("shop").weights
gate, up, down = (weights[f"model.layers.2.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
x = torch.randn(5, 256, generator=torch.Generator().manual_seed(0))
exact = torch.nn.functional.silu(x @ gate.T) * (x @ up.T) @ down.T
for size in (1, 2, 4):
    group = RankGroup(size)

    def on_rank(rank, all_reduce, size=size):
        shards = column_shard(gate, rank, size), column_shard(up, rank, size), row_shard(down, rank, size)
        return parallel_mlp(x, *shards, all_reduce)

    results = group.run(on_rank)
    off = max(float((result - exact).abs().max()) for result in results)
    print(
        f"{size} ranks: {group.num_calls} all-reduce of {group.num_bytes:,} B, largest difference {off:.1e}"
    )
    this.holds("one all-reduce", group.num_calls == 1)
    this.holds("with several ranks the difference is not zero", (0 < off < 1e-4) == (size > 1))

# %% [markdown] name="run"
# ## Run it
#
# Two real processes, two requests, greedy. In this engine one rank gathers the logits and samples (in vLLM every rank
# gets them); the engine counts what that rank sends. The tokens must be those of one process.

# %% name="live"
from quizzes.experiments.running import run_here

splits = ["tensor"] if this.quick else ["tensor", "pipeline"]
live = {split: run_here("parallelism.live", {"split": split, "requests": 2}) for split in splits}
for split, found in live.items():
    print(
        f"{split}: same tokens {found['same_tokens']}, {found['collectives_per_step']:.0f} messages and "
        f"{found['bytes_per_step']:,} B per decode step, {found['all_reduces_per_layer']:.0f} all-reduces per layer"
    )
this.reveal("collectives", int(live["tensor"]["collectives_per_step"]))
this.record(same=live["tensor"]["same_tokens"], collectives=live["tensor"]["collectives_per_step"])
this.holds("the tokens are those of one process", all(found["same_tokens"] for found in live.values()))
this.holds(
    "two per layer, one for the embedding, one for logits", live["tensor"]["collectives_per_step"] == 14
)

# %% [markdown] name="shards"
# And who holds what? The engine builds each rank's part as its worker would.

# %% name="who-holds-what"
whole, shares = 0, {}
for split in ("data", "tensor", "pipeline"):
    found = run_here("parallelism.shards", {"split": split})
    whole = whole or found["parameters"][0]
    shares[split] = max(found["parameters"]) / whole
    print(
        f"{split:9} weights {found['parameters']}, layers {found['layers']}, query rows of layer 0 {found['q_rows']}, "
        f"KV heads per layer {found['kv_heads']}"
    )
this.holds(
    "TP halves the weights, PP nearly", abs(shares["tensor"] - 0.5) < 0.01 < shares["pipeline"] - 0.5 < 0.1
)

# %% [markdown] name="shards-words"
# TP halves the weights per device, and PP nearly (both ends hold the embedding, which `shop` uses as its head, too).
# Both halve the KV cache of each token. DP halves nothing: two replicas hold twice the requests, but no larger model
# and no longer request. Note the KV heads: with more ranks than KV heads TP
# stores copies (`parallelism.kv_copies`).
#
# Now the links. Two all-reduces per layer hold for any Llama; the experiment prices them for a 70B model.

# %% name="links"
tokens = [1, 8, 32, 128, 512, 1024, 4096]
share, cost = {}, {}
for link in ("nvlink4", "pcie5", "ib-ndr"):
    runs = [
        run_here("parallelism.traffic", {"tokens": n, "sampled": min(n, 64), "link": link}) for n in tokens
    ]
    share[link], cost[link] = [100 * run["share"] for run in runs], [run["ms"] for run in runs]
    print(
        f"{link:8} {runs[0]['all_reduces']} all-reduces; decode of 32 rows: {runs[2]['ms']:.1f} ms of messages",
        end="",
    )
    print(f", prompt of 4,096 tokens: {runs[-1]['ms']:.0f} ms beside {runs[-1]['step_ms']:.0f} ms of work")
this.reveal("pcie-share", share["pcie5"][-1])
this.holds("on the left latency dominates", all(ms[1] < 1.5 * ms[0] for ms in cost.values()))
this.holds("on the right bandwidth does", all(3 < ms[-1] / ms[-2] < 4.1 for ms in cost.values()))

# %% [markdown] name="plot"
# ## Plot
#
# Messages are not hidden behind arithmetic here, so this is the worst case. On the left latency dominates: 161 small
# messages. On the right bandwidth does: the activations of all tokens, twice per layer.

# %% name="link-plot"
from lessons.course.plots import COLOURS, figure

drawing, axes = figure(
    xlabel="tokens in the step (TP=8)", ylabel="percent of the step", xscale="log", ylim=(0, 100)
)
for link, values in share.items():
    axes.plot(tokens, values, label=link)
axes.legend(fontsize=8, title="Llama-3.1 70B, 8 x H100", title_fontsize=8)
this.plot(drawing)

# %% [markdown] name="split"
# Now disaggregation: the same two GPUs, together or split, the real scheduler in virtual time. Prompts have 4,000
# tokens, answers 200. Together we run twice: with a budget of 8,192 tokens, in which a whole prompt fits, and with one
# of 256, which cuts it into chunks (lesson 10).

# %% name="split-run"
rates = [2.0, 6.0] if this.quick else [1.0, 2.0, 4.0, 6.0, 8.0]
runs = {
    budget: [run_here("disaggregation.compare", {"rate": rate, "budget": budget}) for rate in rates]
    for budget in (8192, 256)
}
curves = {
    "together, budget 8,192": (8192, "colocated"),
    "together, budget 256": (256, "colocated"),
    "split": (8192, "split"),
}

# %% name="split-plot"
for measure, title in (("ttft", "TTFT"), ("itl_p99", "ITL p99")):
    drawing, axes = figure(6.4, 2.4, xlabel="requests per second", ylabel="ms", yscale="log", title=title)
    for label, (budget, kind) in curves.items():
        axes.plot(rates, [run[f"{kind}_{measure}_ms"] for run in runs[budget]], label=label)
    axes.legend(fontsize=8)
    this.plot(drawing)

# %% name="split-figures"
for at in sorted({0, rates.index(6.0)}):
    print(f"{rates[at]:g} requests/s:")
    for label, (budget, kind) in curves.items():
        run = runs[budget][at]
        print(
            f"  {label:22} TTFT {run[f'{kind}_ttft_ms']:4.0f} ms, ITL p99 {run[f'{kind}_itl_p99_ms']:5.1f} ms"
        )
six = runs[8192][rates.index(6.0)]
split, chunked = (
    [run[f"{kind}_ttft_ms"] for run in runs[budget]] for budget, kind in ((8192, "split"), (256, "colocated"))
)
more = [rate for rate, own, other in zip(rates, chunked, split, strict=True) if own > other]
this.holds("chunks cost more TTFT than the split up to four", more == [rate for rate in rates if rate <= 4])
this.holds("chunks flatten the ITL", all(run["colocated_itl_p99_ms"] < 10 for run in runs[256]))
this.reveal("split-loses", "TTFT" if six["split_ttft_ms"] > six["colocated_ttft_ms"] else "ITL p99")

# %% [markdown] name="split-words"
# With the large budget, a prompt of 4,000 tokens sits in the same step as running decodes, and all of them wait for it.
# Split, decodes never meet a prompt; but one GPU serves all prompts, and they queue for it while the other could help.
#
# Then look at the small budget: chunks flatten the ITL as well. While one GPU has time for all prompts (up to four
# requests per second here) they cost more TTFT than the split, from six on less, because prompts queue for the one GPU.
# So "why not just chunk?" is the right question to ask. Disaggregation earns its transfer when the two phases
# need *different* settings or hardware, when ITL must hold while prompts are many and long, or when pools must scale
# apart; not because colocated engines cannot keep ITL flat.

# %% [markdown] name="explore"
# ## Explore
#
# Llama-3.1 70B on H100s. The split, the link between the GPUs, and the tokens of one step. Times add up without
# overlap.

# %% name="explore-split"
from engine.sim.cost import CostModel, StepLoad
from engine.sim.hardware import Link, get_hardware
from engine.sim.interconnect import step_traffic
from quizzes.experiments.context import deploy


def step_of(tp, pp, link_gb_per_s, tokens):
    device = deploy("llama-3.1-70b", "h100", tp=tp, pp=pp)
    link = Link("chosen", link_gb_per_s * 1e9, get_hardware("h100").link.latency_s, "slider")
    shape = device.model
    sizes = dict(hidden_size=shape.hidden_size, num_layers=shape.num_layers, vocab_size=shape.vocab_size)
    split = dict(tensor_parallel_size=tp, pipeline_parallel_size=pp)
    said = step_traffic(value_bytes=2, num_tokens=tokens, num_sampled=min(tokens, 64), **sizes, **split)
    parts = CostModel(device).parts(StepLoad(tokens, tokens, min(tokens, 64), decode_context=512 * tokens))
    parts["messages"] = said.seconds(link)
    del parts["collectives"]
    return device, said, {name: 1e3 * seconds for name, seconds in parts.items()}


# %% name="explore-widget"


def draw_step(tp, pp, link_gb_per_s, tokens):
    device, said, parts = step_of(tp, pp, link_gb_per_s, tokens)
    drawing, axes = figure(6.4, 2.4, xlabel="ms per step")
    colours = [COLOURS["vermillion" if name == "messages" else "blue"] for name in parts]
    axes.barh(list(parts), list(parts.values()), color=colours)
    weights = device.weight_bytes / device.num_devices / 1e9
    return drawing, (
        f"{tp * pp} GPUs, {weights:.0f} GB of weights each{'' if weights < 75 else ' (does not fit)'}. "
        f"{said.num_all_reduces} all-reduces, {said.num_boundaries} boundaries. "
        f"Step {sum(parts.values()):.1f} ms, of which messages {parts['messages'] / sum(parts.values()):.0%}."
    )


controls = dict(tp=[8, 4, 2, 1], pp=[1, 2, 4], link_gb_per_s=(10, 900, 450), tokens=[32, 1, 512, 4096])
this.explore("split", draw_step, **controls)

# %% [markdown] name="build"
# ## Build
#
# **14.2** DP's router. A request goes where its prefix is cached, unless that replica has too much to do. The rule
# is that of `engine/core/router.py`; vLLM's own DP balancer looks at loads only.

# %% name="14.2" tags=["exercise"]
# exercise 14.2
import math
from collections.abc import Mapping, Sequence, Set


def route(
    block_hashes: Sequence[bytes],
    loads: Sequence[int],
    holders: Mapping[bytes, Set[int]],
    max_imbalance: float,
) -> int:
    """Return the replica for a request whose prompt has these full blocks.

    loads: unfinished requests of each replica. holders: block hash -> replicas that cache the block. A hash covers
    all tokens before it, too: who holds block k holds the prefix up to it.
    A replica has room if its load is below ceil(max_imbalance x mean), where the mean of the loads counts the new
    request. Choose among replicas with room that hold the longest prefix which any of these holds; else among all.
    Among equals the least loaded wins, then the smallest index.
    """
    raise NotImplementedError("14.2: longest known prefix with room, else the least loaded")


# %% name="check-14.2"
this.check("14.2")

# %% [markdown] name="use-142"
# Four simulated H100 with an 8B model. Half of the requests share one system prompt, the others one of 60. Compare
# your router with one that looks at loads only.

# %% name="fleet"
from collections import defaultdict
from random import Random

from engine.sim.fleet import Fleet
from engine.sim.router import LeastLoaded, load_of_replica
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest

route = this.piece("14.2")


class Mine:
    needs_state = True

    def __init__(self, max_imbalance):
        self.max_imbalance, self.holders = max_imbalance, defaultdict(set)

    def choose(self, request, core, ready):
        ready[0].engine.scheduler.kv.add(core)  # computes the block hashes
        loads = [load_of_replica(replica) for replica in ready]
        index = route(core.block_hashes, loads, self.holders, self.max_imbalance)
        for block_hash in core.block_hashes:
            self.holders[block_hash].add(index)
        return ready[index]


# %% name="fleet-run"


def serve(router, rate=40.0, count=400, hot=0.5):
    rng, now, requests = Random(7), 0.0, []
    for index in range(count):
        now += rng.expovariate(rate)
        prefix = 0 if rng.random() < hot else rng.randint(1, 60)
        requests.append(SimRequest(index, now, 2600, 100, prefix, 2400))
    device = deploy("llama-3.1-8b", "h100", max_model_len=4096, max_num_seqs=64)
    report = Fleet(lambda: make_engine(device), 4, router).run(requests)
    run, counts = report.run, [replica.num_requests for replica in report.replicas]
    times = f"TTFT {1e3 * run.ttft.mean:.0f} ms, p99 {1e3 * run.ttft.p99:.0f} ms"
    return report, f"hits {run.prefix_cache_hit_rate:.0%}, {times}, requests {counts}"


count = 300 if this.quick else 900
loads_only, words = serve(LeastLoaded(), count=count)
print("least loaded:", words)
affine, words = serve(Mine(1.25), count=count)
print("route, 1.25: ", words)
this.record(hits_loads=loads_only.run.prefix_cache_hit_rate, hits_mine=affine.run.prefix_cache_hit_rate)
this.holds("the router hits more", affine.run.prefix_cache_hit_rate > loads_only.run.prefix_cache_hit_rate)
this.holds("and the first token comes earlier", affine.run.ttft.mean < loads_only.run.ttft.mean)

# %% [markdown] name="build-143"
# **14.3** A hand-over moves the prompt's KV over a link. Sent in one piece it comes after the prefill. Sent layer by
# layer it hides behind the layers that are still being computed, if the link keeps up.

# %% name="14.3" tags=["exercise"]
# exercise 14.3


def transfer_seconds(num_tokens: int, kv_bytes_per_token: int, bytes_per_s: float, latency_s: float) -> float:
    """Return the time to send the KV of a prompt in one message."""
    raise NotImplementedError("14.3: latency, and bytes over rate")


def exposed_seconds(prefill_s: float, transfer_s: float, num_layers: int, layer_by_layer: bool) -> float:
    """Return the time from the end of the prefill until the last byte of its KV has arrived.

    In one piece: all of transfer_s. Layer by layer: a layer's KV, 1 / num_layers of transfer_s, is sent when that
    layer is computed and the link is free; all layers take equally long, prefill_s / num_layers.
    """
    raise NotImplementedError("14.3: what is left on the link when the last layer is computed")


# %% name="check-14.3"
this.check("14.3")

# %% name="use-transfer"
transfer_seconds, exposed_seconds = this.piece("14.3")
priced = run_here("disaggregation.transfer", {})  # Llama-3.1 70B, TP=4, a prompt of 4,000 tokens
prefill = priced["prefill_ms"] / 1e3
print(f"prefill {1e3 * prefill:.0f} ms, KV {priced['kv_bytes'] / 1e9:.2f} GB over four senders")
for name, rate in {
    "NVLink": 450e9,
    "InfiniBand 400 Gb/s": 50e9,
    "10 Gb/s": 1.25e9,
    "2.5 Gb/s": 0.3125e9,
}.items():
    seconds = transfer_seconds(4000, priced["bytes_per_token"] // 4, rate, 12e-6)
    exposed = [1e3 * exposed_seconds(prefill, seconds, 80, how) for how in (False, True)]
    hidden = exposed[1] < 0.02 * exposed[0]
    this.holds("it hides if the link keeps up with the prefill", hidden == (seconds < prefill))
    print(f"{name:20} transfer {1e3 * seconds:6.1f} ms; ", end="")
    print(f"after the prefill {exposed[0]:6.1f} ms, by layer {exposed[1]:6.1f} ms")

# %% [markdown] name="break"
# ## Break it
#
# One line of the router is easy to leave out: the bound. Without it every request of the popular prompt goes to the
# replica that had it first. The hit rate is excellent, and looks like success on a dashboard.

# %% name="no-bound"
unbounded, words = serve(Mine(1e9), count=count, hot=0.9, rate=60)
print("no bound:    ", words)
bounded, words = serve(Mine(1.25), count=count, hot=0.9, rate=60)
print("bound 1.25:  ", words)
print(
    f"busiest replica over the mean: {unbounded.balance:.2f} without a bound, {bounded.balance:.2f} with it"
)
this.record(unbounded=unbounded.balance, bounded=bounded.balance)
hits = [report.run.prefix_cache_hit_rate for report in (unbounded, bounded)]
this.holds("without the bound one replica gets most requests", unbounded.balance > 3 > 1.3 > bounded.balance)
this.holds("the hit rate is excellent and hides it", hits[0] > 0.8 and abs(hits[0] - hits[1]) < 0.05)
this.holds("TTFT tells", unbounded.run.ttft.mean > 10 * bounded.run.ttft.mean)

# %% [markdown] name="say"
# ## Say it in 60 seconds

# %% name="say-it"
this.say()

# %% [markdown] name="now"
# ## What you can answer now
#
# `prep disagg` runs prefill and decode in separate engines with the shipped model. `prep generate shop --chat -p
# "Hi" --data-parallel-size 2` starts two replicas behind a router.

# %% name="questions"
this.questions()
