# ruff: noqa: F401  exercise cells import what their solution needs
# %% [markdown] name="why"
# # Lesson 15: serving
#
# ## Why an interviewer asks
#
# Between the engine and its users stands a server, and most incidents start there:
#
# * Who says no when there is too much work: the gateway with a 429, or the client's timeout?
# * A browser tab closes. How long does its request keep a slot and its blocks?
# * "p99 was 300 ms in the load test." Did the test send requests while the server was slow?
#
# You write the admission control, the stream format and the measurement, and put them in front of the real engine.

# %% name="setup"
from lessons.course.notebook import open_lesson

this = open_lesson("15")

# %% [markdown] name="predict"
# ## Predict
#
# A simulated H100 serves Llama-3.1 8B: prompts of 500 to 1,500 tokens, answers of 100 to 300, 64 slots. A request is
# *good* if its first token comes within 1 s and the mean time per later token is within 50 ms. *Goodput* counts good
# requests per second; throughput counts all. At 18 requests per second nearly all of them are good.

# %% name="predict-goodput"
this.predict(
    "goodput-at-25",
    ...,
    question="25 requests per second arrive for 30 s. Every request may wait as long as it takes. Goodput?",
    unit="good requests/s",
)

# %% name="predict-bounded"
this.predict(
    "goodput-bounded",
    ...,
    question="The same arrivals, but only 16 may wait and all others get a 429 at once. Goodput?",
    unit="good requests/s",
)

# %% name="predict-leak"
this.predict(
    "blocks-after-aborts",
    ...,
    question="200 clients of the real engine hang up in the middle of an answer. How many KV blocks are in use then?",
    unit="blocks",
)

# %% [markdown] name="first-piece"
# ## First piece: the door
#
# **15.1** The door. Slots are few, places in the queue are few, and every id that comes in must go out: by `finish`
# or by `abort`. A server calls `abort` when a connection closes, and it may do so twice or too late.

# %% name="15.1" tags=["exercise"]
# exercise 15.1
from collections import deque


class AdmissionControl:
    """Decides who runs, waits and is rejected: at most max_running run, at most max_waiting wait, first come first."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        raise NotImplementedError("15.1: a set of running ids and a queue of waiting ones")

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    def offer(self, request_id: str) -> str:
        """Return "run", "wait" or "reject" for a new request. Raises ValueError if the id runs or waits already."""

    def finish(self, request_id: str) -> str | None:
        """Free the slot of a running request. Return the waiting request that runs now, or None.

        Raises ValueError if the request does not run.
        """

    def abort(self, request_id: str) -> str | None:
        """Forget a request that runs or waits; an unknown id is not an error. Return who runs instead, or None."""


# %% name="check-15.1"
this.check("15.1")

# %% [markdown] name="run"
# ## Run it
#
# An *open* loop sends requests at their arrival times, whatever the server does. That is how users behave who do not
# know each other. `open_loop` drives the real scheduler in virtual time; your admission control decides which
# requests to take.

# %% name="two-queues"
from lessons.given.load import closed_loop, open_loop

Door = this.piece("15.1")
percentile_of, goodput_of = this.piece("15.2")
SECONDS = 20 if this.quick else 30


def measure(records):
    """Return goodput, share of requests without an answer, and the p99 of the TTFT of the answered ones."""
    answered = [first - arrival for arrival, first, _, count in records if count]
    good = goodput_of(records, 1.0, 0.05, SECONDS)
    return good, 1 - len(answered) / len(records), percentile_of(answered, 99)


endless = measure(open_loop(Door(64, 100_000), 25.0, SECONDS))
bounded = measure(open_loop(Door(64, 16), 25.0, SECONDS))
for name, (good, lost, p99) in {"endless queue": endless, "16 may wait": bounded}.items():
    print(f"{name}: {good:.1f} good requests/s, {lost:.0%} without an answer, TTFT p99 {p99:.2f} s")
this.reveal("goodput-at-25", endless[0])
this.reveal("goodput-bounded", bounded[0])
this.record(endless=endless[0], bounded=bounded[0])
this.holds("with an endless queue few get a good answer", endless[0] < 0.4 * 25 and endless[1] == 0)
this.holds(
    "rejecting a few keeps the others good", bounded[0] > 0.95 * 25 * (1 - bounded[1]) and bounded[1] < 0.2
)

# %% [markdown] name="run-words"
# The endless queue rejected no request, and few requests got a good answer: a queue that grows makes *every* later
# request late, though the GPU is as busy as before. Rejecting a few keeps the others good. That is the case for a
# 429 with `Retry-After`: capacity goes to requests that can still be in time.

# %% [markdown] name="plot"
# ## Plot
#
# The same at many rates. The diagonal is "everything good".

# %% name="knee"
from lessons.course.plots import COLOURS, figure

rates = [10, 18, 22, 30] if this.quick else [5, 10, 15, 18, 20, 22, 25, 30, 35]
good = {}
drawing, axes = figure(xlabel="requests per second that arrive", ylabel="good requests per second")
for label, places in {"endless queue": 100_000, "16 may wait": 16}.items():
    runs = [measure(open_loop(Door(64, places), float(rate), SECONDS)) for rate in rates]
    good[places] = [run[0] for run in runs]
    axes.plot(rates, good[places], label=label)
    print(f"{label}:", ", ".join(f"{rate} -> {run[0]:.1f}" for rate, run in zip(rates, runs, strict=True)))
axes.plot(rates, rates, "--", color=COLOURS["grey"], marker="", label="all good")
axes.legend(fontsize=8)
this.plot(drawing)
endless_good, bounded_good = good.values()
knee = rates.index(22)
this.holds("left of the knee limits change nothing", endless_good[:knee] == bounded_good[:knee])
this.holds("at 18 nearly all are good", endless_good[rates.index(18)] > 0.95 * 18)
this.holds("right of it the endless queue loses what it had", endless_good[-1] < 0.4 * endless_good[knee - 1])
this.holds("and 16 places keep it", min(bounded_good[knee:]) > bounded_good[knee - 1])

# %% [markdown] name="closed"
# The curve has a *knee*. Left of it, limits change nothing. Right of it, the endless queue loses what it had.
#
# Now the other kind of load test: a *closed* loop, N clients that each wait for an answer before they ask again. It
# can never overload the server, because slow answers slow the clients down.

# %% name="closed-loop"
clients = [8, 64] if this.quick else [8, 16, 32, 64]
for count in clients:
    records = [record for record in closed_loop(count, SECONDS) if record.last_token > 5]  # all start at once
    rate, p99 = len(records) / (SECONDS - 5), percentile_of([r.first_token - r.arrival for r in records], 99)
    print(f"{count:3} clients: {rate:4.1f} requests/s, TTFT p99 {p99:.2f} s")
print(f"open loop at 25 requests/s: TTFT p99 {endless[2]:.2f} s, goodput {endless[0]:.1f}")
this.holds("a closed loop does not show the queue of an open one", p99 < 0.4 * endless[2])

# %% [markdown] name="omission"
# Both tests tell the truth about different questions. "How fast can it go?" is closed. "What do users see at 25
# requests per second?" is open. Answering the second with the first is *coordinated omission*: requests that would
# have waited were never sent, so their times are missing from the percentile. TTFT must count from the *intended*
# arrival.

# %% [markdown] name="explore"
# ## Explore
#
# Rate, places in the queue, and the time after which a waiting client gives up. A timeout also bounds the queue, but
# it spends the client's time first.

# %% name="explore-load"


def draw_load(rate, places, timeout):
    records = open_loop(Door(64, places), float(rate), 15, timeout=timeout)
    good = goodput_of(records, 1.0, 0.05, 15)
    waits = [r.first_token - r.arrival if r.num_tokens else None for r in records]
    drawing, axes = figure(6.4, 2.8, xlabel="arrival, s", ylabel="TTFT, s")
    met = [(r.arrival, w) for r, w in zip(records, waits, strict=True) if w is not None]
    axes.plot(*zip(*met, strict=True), linestyle="", markersize=2)
    axes.axhline(1.0, color=COLOURS["vermillion"], linewidth=1)
    axes.set_ylim(bottom=0)
    lost = sum(w is None for w in waits)
    return drawing, f"{good:.1f} good requests/s of {rate}; {lost} of {len(records)} got no answer."


this.explore("load", draw_load, rate=(5, 40, 25), places=[100_000, 64, 16, 0], timeout=(0.5, 20.0, 20.0))

# %% [markdown] name="server-words"
# ## Build
#
# The server of `prep serve` (`engine/server`) speaks OpenAI's API and has vLLM's metrics. `lessons/mine/server.py` puts
# your admission control at its door. It runs here on a free port of this machine, with two slots and two places in the
# queue. Eight clients ask at once.

# %% name="loopback"
import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

from engine import EngineArgs, SamplingParams
from engine.async_llm import AsyncLLM
from lessons.mine.server import serving

CHAT = "/v1/chat/completions"


def run(coroutine):
    """Run a coroutine in a thread: the notebook's own loop is busy."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


# %% name="two-clients"
async def hang_up(client, body):
    """Leave after the first event of a stream."""
    async with client.stream("POST", CHAT, json=body) as response:
        await anext(response.aiter_lines())


async def watched(client):
    """Return the metrics that this lesson looks at."""
    lines = (await client.get("/metrics")).text.splitlines()
    wanted = (
        "num_requests_running",
        "num_requests_waiting",
        "generation_tokens_total",
        "admission_rejections_total",
    )
    named = ((line.split("{")[0].removeprefix("vllm:"), line.split()[-1]) for line in lines if "{" in line)
    return {name: float(value) for name, value in named if name in wanted}


# %% name="eight-clients"
def engine(**settings):
    return AsyncLLM(EngineArgs.create(model="shop", max_num_seqs=16, num_gpu_blocks_override=512, **settings))


def question(max_tokens, **more):
    notes = {"role": "system", "content": "Silver Harbor costs 640 yen. Silver Harbor spans 12 volumes."}
    asked = {"role": "user", "content": "How much is Silver Harbor?"}
    return {"messages": [notes, asked], "max_tokens": max_tokens, "temperature": 0, **more}


async def eight_clients():
    with engine() as llm:
        async with serving(llm, Door(2, 2)) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            answers = await asyncio.gather(*(client.post(CHAT, json=question(24)) for _ in range(8)))
            return answers, await watched(client)


# %% name="run-eight-clients"
answers, metrics = run(eight_clients())
statuses = Counter(answer.status_code for answer in answers)
print(statuses)
for name, value in metrics.items():
    print(f"vllm:{name:<30} {value:g}")
this.record(ok=statuses[200], rejected=statuses[429])
this.holds("two run, two wait, four are rejected", statuses == {200: 4, 429: 4})

# %% [markdown] name="aborts"
# Now hang-ups. Leaving the loop over `AsyncLLM.generate` aborts the request: the engine frees its blocks before its
# next step. The cell starts many requests, leaves each after a few tokens, and counts what the engine still holds.

# %% name="abort-many"


async def abort_many(count):
    with engine(enable_prefix_caching=False) as llm:

        async def client(number):
            outputs = llm.generate(
                f"Once upon a time {number}", SamplingParams(max_tokens=200, ignore_eos=True)
            )
            async for output in outputs:
                if len(output.outputs[0].token_ids) > number % 4:
                    break
            await outputs.aclose()

        await asyncio.gather(*(client(number) for number in range(count)))
        await llm.reset_prefix_cache()  # runs in the engine's thread, so all aborts are done
        scheduler = llm.llm_engine.engine_core.scheduler
        return scheduler.kv.pool.num_used, len(scheduler.requests)


blocks, requests = run(abort_many(60 if this.quick else 200))
print(f"{requests} requests and {blocks} blocks are left")
this.reveal("blocks-after-aborts", blocks)
this.record(blocks_left=blocks, requests_left=requests)
this.holds("an abort frees the blocks", (blocks, requests) == (0, 0))

# %% [markdown] name="build-152"
# **15.2** The measurement. Goodput needs both objectives of the *same* request: 95 % in time for the first token and
# 95 % fast enough afterwards may mean 90 % happy users. And requests without an answer count, as infinitely late.

# %% name="15.2" tags=["exercise"]
# exercise 15.2
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile (0 to 100), interpolating linearly between neighbours. Raises ValueError if empty.

    Between equal neighbours it is their value, also between two infinite ones, where numpy computes inf - inf: NaN.
    """
    raise NotImplementedError("15.2: sort, find the place, interpolate")


def goodput(
    records: Sequence[tuple[float, float, float, int]], ttft_slo: float, tpot_slo: float, seconds: float
) -> float:
    """Return the requests per second that met both objectives (limits included).

    records: (arrival, first token, last token, number of tokens) in seconds; 0 tokens: no answer. TTFT counts from
    the arrival. TPOT is the mean time per token after the first; a single token has none and meets it.
    """
    raise NotImplementedError("15.2: count requests that met both, per second")


# %% name="check-15.2"
this.check("15.2")

# %% [markdown] name="build-153"
# **15.3** Tokens travel as *server-sent events*: lines of text over one HTTP response. TCP does not keep your pieces
# together: a `read` may end inside a line, or inside one of the three bytes of マ.

# %% name="15.3" tags=["exercise"]
# exercise 15.3
import json


def sse(events: list[dict]) -> bytes:
    """Return a stream of server-sent events: `data: JSON` and an empty line for each, `data: [DONE]` at the end."""
    raise NotImplementedError("15.3: one block per event")


class SSEParser:
    """Reads a stream that arrives in pieces, cut anywhere, even inside a character."""

    def __init__(self) -> None:
        raise NotImplementedError("15.3: what is left of the last piece, and the data lines so far")

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of the events that this piece completes.

        A line ends with LF or CR LF, an empty line ends the event. Data lines of one event are joined by LF; one
        space after "data:" does not count. Other lines, and events without data, are ignored.
        """


# %% name="check-15.3"
this.check("15.3")

# %% name="stream" tags=["varies"]
sse, SSEParser = this.piece("15.3")


async def stream_one():
    with engine() as llm:
        async with serving(llm, Door(2, 2)) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            return (await client.post(CHAT, json=question(12, stream=True))).content


body, parser = run(stream_one()), SSEParser()
events = [
    event for start_at in range(0, len(body), 50) for event in parser.feed(body[start_at : start_at + 50])
]
texts = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events if event != "[DONE]"]
print(f"{len(body)} B in pieces of 50: {len(events)} events, the last is {events[-1]}")
print("|".join(texts))
this.record(events=len(events))
this.holds(
    "events arrive whole from pieces of any size", events[-1] == "[DONE]" and "640 yen" in "".join(texts)
)

# %% [markdown] name="break"
# ## Break it
#
# One line wrong: a connection that closes does not give its slot back. Everything works in a demo. Four clients hang
# up, and the server rejects the fifth, for ever, with an idle GPU.

# %% name="leaky-door"


class Leaky(Door):
    def abort(self, request_id):
        return None  # forgets to free the slot


async def hang_ups(admission):
    with engine() as llm:
        async with serving(llm, admission) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            for _ in range(4):
                await hang_up(client, question(400, stream=True, ignore_eos=True))
                await asyncio.sleep(0.1)
            status = (await client.post(CHAT, json=question(8))).status_code
            return status, (await watched(client))["num_requests_running"]


# %% name="leak-run"
for name, admission in {"yours": Door(4, 0), "leaky": Leaky(4, 0)}.items():
    status, running = run(hang_ups(admission))
    print(
        f"{name}: the fifth client gets {status}; the engine runs {running:g} requests, "
        f"the door counts {admission.num_running}"
    )
    this.record(**{f"status_{name}": status})
    this.holds("the leaky server rejects, with an idle engine", status == (429 if name == "leaky" else 200))
    this.holds("no request runs in the engine", running == 0)

# %% [markdown] name="break-words"
# An alert on errors fires and points at load. The metric that tells the truth is the pair: 429 rises while
# `vllm:num_requests_running` is 0. Slots of the door and rows of the engine must agree; graph their difference.

# %% [markdown] name="say"
# ## Say it in 60 seconds

# %% name="say-it"
this.say()

# %% [markdown] name="now"
# ## What you can answer now
#
# `prep mine` starts this server with your pieces. `prep run operations.incident --set fault=overload` shows the
# dashboard of the endless queue.

# %% name="questions"
this.questions()
