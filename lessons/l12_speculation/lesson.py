# %% [markdown] name="why"
# # Lesson 12: speculative decoding
#
# ## Why an interviewer asks
#
# A decode step reads all weights to compute one token. Checking five tokens costs nearly the same read. So let
# something cheap guess four, and check them in one pass. The follow-ups show who read more than the abstract:
#
# * Is the output the same? In which sense?
# * The drafter is right 80 % of the time. How much faster is it, with four drafts?
# * When does it make things slower?
#
# You write a drafter without a model, the acceptance test that keeps the distribution, and the arithmetic.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("12")

# %% [markdown] name="predict"
# ## Predict
#
# A draft counts only if all drafts before it were right. After the last right one, the target adds a token of its own.

# %% name="predict-tokens"
this.predict(
    "tokens",
    ...,
    question="Four drafts per step, each right with probability 0.8. How many tokens does a step produce on average?",
    unit="tokens",
)

# %% name="predict-k"
this.predict(
    "more",
    ...,
    question="From four drafts to eight with the shop's draft model: how many times as many tokens per step?",
    unit="x",
)

# %% name="predict-batch"
this.predict(
    "batch",
    ...,
    question="Qwen2.5-72B on four H100, a 0.5B drafter, four drafts, acceptance 0.7. Speed-up with 256 requests in "
    "the batch?",
    unit="x",
)

# %% [markdown] name="first-piece"
# ## First piece: a drafter
#
# **12.1** Drafts without a model. Answers copy their prompt: names, prices, code. Look up the text's ending earlier in
# the text, and propose what followed it there. (vLLM's n-gram drafter takes the first match, ours the last.)


# %% name="12.1" tags=["exercise"]
# exercise 12.1
def propose(token_ids: list[int], num_drafts: int, max_ngram: int) -> list[int]:
    """Return up to `num_drafts` drafts: what followed the ending of `token_ids` when it last occurred before.

    The longest ending counts first, from max_ngram tokens down to one; of its earlier occurrences the most recent.
    An earlier occurrence may overlap the ending. Returns [] if no ending occurred before.
    """
    raise NotImplementedError("12.1: look up endings, the longest first, from the back")


# %% name="check-12.1"
this.check("12.1")

# %% [markdown] name="lookup"
# Your drafter on real text. A model that answers with this text, token by token, would accept what the table says.
# *Write*: the drafter knows only the answer so far. *Edit*: the prompt holds the text, and the answer renames a word.

# %% name="use-12.1"
from engine.zoo.registry import MODELS
from engine.zoo.tokenizer import load_tokenizer
from quizzes.experiments.speculation.counting import read

propose = this.piece("12.1")
tokenizer = load_tokenizer(MODELS / "shop")


def replay(known, answer, k=4):
    """Return the tokens per step if a model answers exactly this."""
    done = steps = 0
    while done < len(answer):
        drafts = propose(known + answer[:done], k, 5)
        right = [a == b for a, b in zip(drafts, answer[done:], strict=False)]
        done += 1 + (right.index(False) if False in right else len(right))
        steps += 1
    return len(answer) / steps


# %% name="replay-texts" tags=["varies"]
import re

for name in ("code", "prose", "json"):
    text = read(name)[: 1200 if this.quick else 2400]
    word = max(sorted(set(re.findall(r"[a-z_]{6,}", text))), key=text.count)
    write, edit = (tokenizer.encode(each).ids for each in (text, text.replace(word, "renamed")))
    written, edited = replay([], write), replay(write, edit)
    print(f"{name:5}: write {written:.2f} tokens per step, edit {edited:.2f}")
    this.holds("an answer that copies its prompt accepts more", edited > written > 1)

# %% [markdown] name="run"
# ## Run it
#
# The engine has an n-gram drafter like yours, and can draft with a model: `shop-draft` is a small one with the
# tokenizer of `shop`. Sixteen prompts, half of them unlike the training text, at temperature 1. The engine counts
# drafts and acceptances in every step, by position.

# %% name="run-counters"
from quizzes.experiments.context import Context
from quizzes.experiments.speculation.live import METHODS, prompts, run

questions = prompts("recommend", 8) + prompts("free", 8)


def count(method, k, **more):
    """Return the engine's counters of one run, and how many rows had drafts; k = 0: without drafts."""
    speculative = {**METHODS[method], "num_speculative_tokens": k, **more} if k else None
    with Context().llm(max_num_seqs=16, speculative_config=speculative) as llm:
        core, rows = llm.llm_engine.engine_core, []
        real_step = core.step

        def step():
            outputs = real_step()
            rows.append(core.scheduler.stats.num_drafts)
            return outputs

        core.step = step
        return run(llm, questions, temperature=1.0, max_tokens=32), sum(rows)


# %% name="show-counters"
ks = [0, 1, 2, 4, 8] if this.quick else [0, 1, 2, 3, 4, 5, 6, 8]
counted = {method: {k: count(method, k)[0] for k in ks} for method in ("draft_model", "ngram")}
print("drafter       k   engine steps   drafted   accepted   tokens per request and step")
for method, runs in counted.items():
    for k, found in runs.items():
        print(
            f"{method:11} {k:3} {found.steps:14} {found.drafted:9} {found.accepted:10} {found.tokens_per_step:12.2f}"
        )

# %% name="check-same"
plain = counted["draft_model"][0].tokens
same = all(found.tokens == plain for runs in counted.values() for found in runs.values())
print(f"every run produced the tokens of the run without drafts, at temperature 1: {same}")
rejection = count("draft_model", 4, verifier="rejection")[0].tokens
print(f"with the textbook's rejection sampling: {rejection == plain}")
gain = counted["draft_model"][8].tokens_per_step / counted["draft_model"][4].tokens_per_step
this.reveal("more", round(gain, 2))
this.record(same_tokens=same, gain=gain)
this.holds("with the same noise, the output is token for token the same", same)
this.holds("rejection sampling gives other samples", rejection != plain)

# %% [markdown] name="lossless"
# Two meanings of "lossless". By default this engine samples draft and target with the *same noise*, so the output is
# token for token that of a run without drafts (`verifier: coupling`). vLLM, and most papers, use rejection sampling:
# each token has the target's *distribution*, but a run with drafts gives other samples than one without. At
# temperature 0 both are identical to plain decoding, up to rounding that differs with the shape of the batch.

# %% [markdown] name="plot"
# ## Plot
#
# The formula's assumption is that every draft is right with the same probability. Is it?

# %% name="plot-positions"
from lessons.course.plots import COLOURS, figure

found, num_rows = count("draft_model", 8)
reached = [num_rows, *found.by_place]  # rows in which all drafts before this position were right
chances = [100 * right / tried for tried, right in zip(reached, found.by_place, strict=False)]
drawing, axes = figure(
    xlabel="position of the draft", ylabel="accepted, %", title="Drafts accepted, if all before them were"
)
axes.bar(range(1, len(chances) + 1), chances, color=COLOURS["blue"])
axes.set_ylim(0, 100)
this.plot(drawing)
print(f"accepted by position: {found.by_place} of {num_rows} rows with drafts")
this.record(first=chances[0], second=chances[1])
this.holds("the first draft of a step fails most often", chances[0] == min(chances))
this.holds("one that follows a right one is nearly always right", min(chances[1:]) > 85)

# %% name="plot-formula"
drawing, axes = figure(
    xlabel="drafts per step, k", ylabel="tokens per step", title="The formula and the engine"
)
for method, colour, marker in (("draft_model", "blue", "o"), ("ngram", "green", "^")):
    runs = counted[method]
    axes.plot(ks, [runs[k].tokens_per_step for k in ks], color=COLOURS[colour], marker=marker, label=method)
alpha = counted["draft_model"][1].acceptance
formula = [sum(alpha**place for place in range(k + 1)) for k in ks]
axes.plot(
    ks, formula, color=COLOURS["black"], linestyle="--", marker="", label=f"formula, alpha = {alpha:.2f}"
)
axes.set_ylim(0)
axes.legend()
this.plot(drawing)
this.reveal("tokens", round(sum(0.8**place for place in range(5)), 3))
measured = counted["draft_model"][8].tokens_per_step
this.holds("the formula promises too much for large k", formula[-1] > 1.1 * measured)

# %% [markdown] name="read-the-plot"
# Drafts are not coins. Where text is easy, all drafts are right and few steps are needed; so most steps begin at hard
# places. The first draft of a step fails most often, and one that follows a right one is nearly always right (more
# often than the bars say: at the end of a request there are fewer drafts). The formula, with the acceptance of k = 1,
# promises too much for large k. Use it to compare settings, and the
# counters by position (`num_accepted_tokens_per_pos`; vLLM logs them, too) to choose k.

# %% [markdown] name="clock"
# Steps are not seconds. The clock of this machine, for one request at a time, in pairs of runs with and without
# drafts. Two prices are left: the drafts (here the draft model is not much smaller than its target; looking up is
# cheap), and a pass over five tokens, which takes longer than one over a single token on this CPU.

# %% name="run-clock" tags=["varies"]
from quizzes.experiments.measure import paired_ratio

with Context().llm(max_num_seqs=16) as target_alone:
    for method in ("draft_model", "ngram"):
        speculative = {**METHODS[method], "num_speculative_tokens": 4}
        with Context().llm(max_num_seqs=16, speculative_config=speculative) as with_drafts:
            runs = [
                lambda llm=llm: run(llm, questions[:3], temperature=0.0, max_tokens=32, one_by_one=True)
                for llm in (target_alone, with_drafts)
            ]
            ratio = paired_ratio(*runs, seconds=1.0 if this.quick else 4.0)
            steps = runs[0]().steps / runs[1]().steps
        lo, hi = ratio.interval["lo"], ratio.interval["hi"]
        print(
            f"{method:11}: {steps:.1f} x fewer steps, {ratio.median:.2f} x faster (95 %: {lo:.2f} to {hi:.2f})"
        )
        if not this.quick:
            this.holds("steps are not seconds", ratio.median < steps)

# %% [markdown] name="explore"
# ## Explore: alpha, k and the price
#
# In units of a plain decode step: `cost` is a draft's time, `slope` what each further token adds to the verifying
# pass. The arithmetic is exercise 12.3. Find the alpha at which drafts of cost 0.1 stop paying. Then raise the slope to
# 0.3, as in a large batch, and watch the best k.

# %% name="explore-pieces"
tokens_of, rate_of, choose_k = this.piece("12.3")


# %% name="draw-speedup"
def draw_speedup(alpha, cost, slope, most):
    verify_of = [1 + slope * k for k in range(most + 1)]
    curve = [rate_of(alpha, k, cost, verify) for k, verify in enumerate(verify_of)]
    best = choose_k(alpha, cost, verify_of)
    drawing, axes = figure(
        xlabel="drafts per step, k", ylabel="speed-up", title=f"alpha {alpha}, a draft costs {cost}"
    )
    axes.plot(range(most + 1), curve, color=COLOURS["blue"])
    axes.plot(
        [best],
        [curve[best]],
        color=COLOURS["vermillion"],
        marker="D",
        linestyle="",
        label=f"best: k = {best}",
    )
    axes.axhline(1, color=COLOURS["black"], linewidth=0.8)
    axes.set_ylim(0)
    axes.legend()
    return drawing, (
        f"best k = {best}: {tokens_of(alpha, best):.2f} tokens per step, speed-up {curve[best]:.2f}\n"
        f"k = {most}: {tokens_of(alpha, most):.2f} tokens per step, speed-up {curve[most]:.2f}"
    )


# %% name="explore-speedup"
this.explore(
    "acceptance-curve",
    draw_speedup,
    alpha=[0.8, 0.3, 0.5, 0.6, 0.7, 0.9, 0.95],
    cost=[0.05, 0.0, 0.02, 0.1, 0.2, 0.5],
    slope=[0.02, 0.0, 0.1, 0.3, 1.0],
    most=(2, 16, 10),
)

# %% [markdown] name="acceptance"
# ## Build
#
# **12.2** The heart. A draft was drawn from `q`, the target wants `p`. Accept it with probability min(1, p / q).
# Where the drafter proposes a token too often, some proposals are turned down. Where it proposes too rarely, every
# proposal passes, and what is still missing is exactly max(0, p - q): draw from that after a rejection.


# %% name="12.2" tags=["exercise"]
# exercise 12.2
def accept(
    drafts: list[int], target_probs: list[list[float]], draft_probs: list[list[float]], uniforms: list[float]
) -> list[int]:
    """Return the tokens of one verified step: the accepted drafts and one token more, distributed as the target.

    target_probs: k + 1 rows of the target's probabilities, after 0, 1, ... k drafts. draft_probs: the k rows that the
    drafts were drawn from. uniforms: k + 1 numbers in [0, 1); number i decides on draft i: accepted with probability
    min(1, p / q). The first rejection ends the step with a draw from max(0, p - q), normalised. Without a rejection
    the last row of target_probs gives the extra token. That one draw uses uniforms[k], by inverse CDF.
    """
    raise NotImplementedError("12.2: accept, or draw from what is missing; one token more at the end")


# %% name="check-12.2"
this.check("12.2")

# %% [markdown] name="draws"
# 200,000 draws on a vocabulary of five tokens. The drafter is bad on purpose. Its taste must leave no mark.

# %% name="use-12.2"
from random import Random

accept = this.piece("12.2")
target, draft = [0.5, 0.3, 0.15, 0.05, 0.0], [0.1, 0.2, 0.3, 0.3, 0.1]
num_draws = 50_000 if this.quick else 200_000


def distribution(accept):
    """Return the shares of the first token of a step, over seeded draws, and of the drafts accepted."""
    rng, counts, num_accepted = Random(12), [0] * 5, 0
    for token in rng.choices(range(5), draft, k=num_draws):
        tokens = accept([token], [target, target], [draft], [rng.random(), rng.random()])
        counts[tokens[0]] += 1
        num_accepted += len(tokens) - 1
    return [number / num_draws for number in counts], num_accepted / num_draws


def distance(one, two):
    """Return the total variation distance: the largest difference in the probability of any event."""
    return sum(abs(a - b) for a, b in zip(one, two, strict=True)) / 2


# %% name="compare-distributions"
drawn, rate = distribution(accept)
print(f"distance of the drafts to the target: {distance(draft, target):.3f}")
print(f"distance of the output to the target: {distance(drawn, target):.4f}")
print(f"accepted: {rate:.3f}; 1 - distance of the drafts: {1 - distance(draft, target):.3f}")
this.record(distance=distance(drawn, target), accepted=rate)
this.holds(
    "the drafter's taste leaves no mark", distance(drawn, target) < 0.01 * distance(draft, target) + 0.005
)
this.holds("the chance to accept is the overlap", abs(rate - (1 - distance(draft, target))) < 0.01)

# %% [markdown] name="overlap"
# The last line is the theorem behind it: the chance to accept is the overlap of the two distributions, the sum of
# min(p, q). So temperature matters: two greedy models overlap fully or not at all, at a high temperature both are
# flat and overlap much, whatever they think.

# %% [markdown] name="pays"
# **12.3** When does it pay? In units of a plain decode step: `cost` for one draft, `verify` for the target's pass over
# k + 1 tokens per request. At batch 1 `verify` is about 1, because the weights are read once either way.


# %% name="12.3" tags=["exercise"]
# exercise 12.3
def expected_tokens(alpha: float, k: int) -> float:
    """Return the mean number of tokens per verified step of k drafts, each right with probability alpha.

    A draft counts only if all before it were right; the target always adds one token.
    """
    raise NotImplementedError("12.3: the draft at position i counts with probability alpha ** i")


def speedup(alpha: float, k: int, cost: float, verify: float = 1.0) -> float:
    """Return the tokens per second with k drafts over those without.

    cost: time of one draft over that of a plain decode step. verify: time of the target's pass over k + 1 tokens per
    request, over that of a plain decode step; it matters for k > 0 only.
    """


def best_k(alpha: float, cost: float, verify_of: list[float]) -> int:
    """Return the k with the largest speed-up, 0 if drafts never pay; of equal ones the smallest.

    verify_of[k]: `verify` for k drafts; its length limits k, and verify_of[0] is 1.
    """


# %% name="check-12.3"
this.check("12.3")

# %% [markdown] name="batch"
# Now the batch. The simulator runs the real scheduler with drafts on a roofline: Qwen2.5-72B on four H100, drafter
# Qwen2.5-0.5B on one. Beside it your formula, with the measured step times.

# %% name="run-batch"
from quizzes.experiments.running import run_here

expected_tokens, speedup, best_k = this.piece("12.3")
batches = [1, 16, 64, 256] if this.quick else [1, 4, 16, 32, 64, 128, 256]
priced = {}
for batch in batches:
    priced[batch] = run_here(
        "speculation.speedup", {"batch": batch, "k": 4, "acceptance": 0.7, "output": 120}
    )
    mine = speedup(0.7, 4, 0.0, priced[batch]["step_ratio"])  # the ratio includes the drafts' time
    print(
        f"batch {batch:3}: a step takes {priced[batch]['step_ratio']:.2f} times as long, speed-up "
        f"{priced[batch]['speedup']:.2f} (formula {mine:.2f})"
    )
this.reveal("batch", round(priced[256]["speedup"], 2))
this.record(batch_256=priced[256]["speedup"], batch_1=priced[1]["speedup"])
this.holds("five positions take up to five times as long", 3 < priced[256]["step_ratio"] <= 5)
this.holds("a full batch has no idle arithmetic", priced[256]["speedup"] < 1 < priced[64]["speedup"])
this.holds("at 256 the run beats the formula", priced[256]["speedup"] > mine)

# %% name="plot-batch"
drawing, axes = figure(xlabel="requests in the batch", ylabel="speed-up", title="Four drafts, acceptance 0.7")
axes.plot(batches, [priced[batch]["speedup"] for batch in batches], color=COLOURS["blue"])
axes.axhline(1, color=COLOURS["black"], linewidth=0.8)
axes.set_xscale("log", base=2)
axes.set_xticks(batches, [str(batch) for batch in batches])
axes.set_ylim(0)
this.plot(drawing)

# %% [markdown] name="batch-read"
# A full batch has no idle arithmetic to spend on guesses: five positions per request take up to five times as long.
# (At 256 the run beats the formula: lucky requests finish early, and later steps are smaller than the typical one.) A
# server that speculates must stop when it is busy. Here the setting is `disable_by_batch_size`: the next cell counts
# drafts of the live engine with and without it.

# %% name="run-disable"
for limit in (None, 8):
    found, _ = count("draft_model", 4, disable_by_batch_size=limit)
    print(f"disable_by_batch_size={limit}: {found.drafted:4} drafts in {found.steps} steps")
    this.record(**{f"drafted_{limit}": found.drafted})
    this.holds("the setting switches drafts off", (found.drafted == 0) == (limit == 8))

# %% [markdown] name="grammar"
# Drafts and a grammar: the mask applies at each drafted position, as if the drafts before it were accepted. So
# structured output may be combined with drafts and, with the same noise, gives the same text.

# %% name="run-grammar"
from engine import SamplingParams

pattern = '\\{"price": [0-9]{3,4}, "volumes": [0-9]{1,2}\\}'
params = SamplingParams(temperature=1.0, seed=3, max_tokens=32, structured_outputs={"regex": pattern})
texts = []
for speculative in (None, {**METHODS["draft_model"], "num_speculative_tokens": 4}):
    with Context().llm(speculative_config=speculative) as llm:
        [output] = llm.generate([questions[0]], params, use_tqdm=False)
        texts.append(output.outputs[0].text)
print(f"{texts[0]!r}; the same with drafts: {texts[0] == texts[1]}")
this.record(same_text=texts[0] == texts[1])
this.holds("structured output with drafts gives the same text", texts[0] == texts[1])

# %% [markdown] name="break"
# ## Break it: draw again from the target
#
# One wrong line that many reviewers pass: after a rejection, draw from `p` instead of max(0, p - q). "The target
# decides anyway." Predict which tokens come too often.


# %% name="break-residual"
def accept_broken(drafts, target_probs, draft_probs, uniforms):
    """Like accept, with another draw after a rejection."""
    [token], p, q = drafts, target_probs[0], draft_probs[0]
    if uniforms[0] * q[token] < p[token]:
        return [token, accept([], [target_probs[1]], [], uniforms[1:])[0]]
    return accept([], [p], [], uniforms[1:])  # a draw from p


broken, broken_rate = distribution(accept_broken)
drawing, axes = figure(xlabel="token", ylabel="probability", title="The first token of a step")
for offset, values, colour, label in (
    (-0.3, target, "black", "target"), (-0.1, drawn, "blue", "accept"),
    (0.1, broken, "vermillion", "drawn from p"), (0.3, draft, "orange", "drafter"),
):  # fmt: skip
    axes.bar([place + offset for place in range(5)], values, 0.19, color=COLOURS[colour], label=label)
axes.legend()
this.plot(drawing)
print(f"distance to the target: {distance(drawn, target):.4f}, broken {distance(broken, target):.4f}")
print(f"drafts accepted: {rate:.3f}, broken {broken_rate:.3f}")
this.record(broken=distance(broken, target))
towards = distance(broken, draft) < distance(drawn, draft) and distance(broken, target) > 0.1
this.holds("the output moves towards the drafter", towards)
this.holds("the acceptance rate is the same", abs(broken_rate - rate) < 0.01)

# %% [markdown] name="break-read"
# The output moves towards the drafter, the acceptance rate is the same, and every answer reads well. No metric of the
# server shows this fault: only a test of the distribution does. That is why the check counts draws.

# %% [markdown] name="say"
# ## Say it in 60 seconds

# %% name="say-it"
this.say()

# %% [markdown] name="questions"
# ## What you can answer now

# %% name="ask"
this.questions()
