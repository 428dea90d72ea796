"""One request, or a few, step by step on the scheduler."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from engine.core.scheduler import Scheduler
from quizzes.experiments import Ask, Context, Result, arg, experiment


class Log:
    """(step, event) pairs. Events of the same name in one step are written once."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str]] = []
        self.step = 0

    def write(self, event: str) -> None:
        if (self.step, event) not in self.entries:
            self.entries.append((self.step, event))

    def first_order(self) -> list[str]:
        """Each event once, in the order of first occurrence."""
        return list(dict.fromkeys(event for _, event in self.entries))


def watch(owner: Any, method: str, before: Callable[[], None], after: Callable[[Any], object] = id) -> None:
    """Call `before` and `after(result)` around every call of a method of an object."""
    call = getattr(owner, method)

    def watched(*args: Any, **kwargs: Any) -> Any:
        before()
        result = call(*args, **kwargs)
        after(result)
        return result

    setattr(owner, method, watched)


def spying(log: Log) -> Callable[..., Scheduler]:
    """Return a factory of logging schedulers for `ctx.core(make_scheduler=...)`."""

    def make(*args: Any, **kwargs: Any) -> Scheduler:
        scheduler = Scheduler(*args, **kwargs)
        kv = scheduler.kv
        for owner, method, event in (
            (kv, "match", "prefix_lookup"),
            (kv, "publish", "update"),
            (kv, "forget", "blocks_freed"),
            (scheduler, "update", "forward"),
        ):
            watch(owner, method, partial(log.write, event))
        for method in ("admit", "allocate"):
            watch(kv, method, lambda: None, lambda ids: log.write("blocks_taken") if ids else None)
        return scheduler

    return make


@experiment("E14")
def one_request(
    ctx: Context,
    prompt: int = arg(50, 1, 20_000),
    output: int = arg(20, 1, 2000),
    block_size: int = arg(16, 1, 256),
    budget: int = arg(8192, 1, 16_384),
    shared: int = arg(0, 0, 20_000),
) -> Result:
    """Follow one request: when it takes blocks, when its first token comes, and how much KV it has at the end.

    shared: an earlier request had the same first tokens, whose blocks are still cached.

    Returns: A request alone in the engine. Steps count from 0.
        first_step_events: Events of its first step in order. `forward` is the model; earlier ones are the scheduler's.
        lookup_before_forward
        taken_in_forward [blocks]: Blocks taken between the start of a forward pass and its end.
        first_token [step]; total_steps [steps]
        prefill_steps [steps]: Steps until the first token, that step included.
        alloc_steps [step]: Steps in which blocks were taken.
        blocks_at_start [blocks]: Owned after its first step.
        blocks_at_end [blocks]: Owned in its last step.
        computed_tokens [tokens]: Positions that went through the model.
        kv_tokens_end [tokens]: Positions with KV when it ended; the last token was sampled and never computed.
        cached_tokens, output_tokens [tokens]; free_after [blocks]
        still_cached [blocks]: Free blocks whose content can still be hit.
    """
    log = Log()
    num_blocks = -(-(prompt + output) // block_size) * 2 + 16
    engine = ctx.core(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=budget,
        traced=True,
        make_scheduler=spying(log),
    )
    tokens = list(range(1, prompt + 1))
    shared = min(shared, prompt)
    if shared:
        engine.run([Ask("before", [*tokens[:shared], 10_000_000], 1)])
    log.entries.clear()
    begin = engine.num_steps
    engine.add(Ask("r", tokens, output))
    while engine.scheduler.has_unfinished():
        log.step = engine.num_steps - begin
        engine.step()
    engine.close()
    outcome = engine.outcomes["r"]
    first = [event for step, event in log.entries if step == 0]
    taken_at = [step for step, event in log.entries if event == "blocks_taken"]
    at_start = num_blocks - engine.steps[begin].free_blocks
    kv_tokens = sum(engine.steps[-1].rows["r"])
    return Result(
        first_step_events=first,
        lookup_before_forward=first.index("prefix_lookup") < first.index("forward"),
        taken_in_forward=first[first.index("forward") :].count("blocks_taken"),
        first_token=outcome.token_steps[0] - begin,
        total_steps=engine.num_steps - begin,
        prefill_steps=outcome.token_steps[0] - begin + 1,
        alloc_steps=taken_at,
        blocks_at_start=at_start if output > 1 or taken_at != [0] else -(-prompt // block_size),
        blocks_at_end=-(-kv_tokens // block_size),
        computed_tokens=outcome.computed_tokens,
        kv_tokens_end=kv_tokens,
        cached_tokens=outcome.cached_tokens,
        output_tokens=len(outcome.token_steps),
        free_after=engine.free_blocks,
        still_cached=engine.steps[-1].stats.num_evictable_blocks,
    )


@experiment("E14")
def slots(
    ctx: Context,
    slots: int = arg(4, 1, 32),
    lens: list[int] = arg([10, 1, 2, 10, 4, 6, 5], 1, 500, count=(1, 64)),
    prompt: int = arg(1, 1, 2000),
    budget: int = arg(8192, 1, 8192),
    num_blocks: int = arg(10_000, 2, 10_000),
) -> Result:
    """Show the batch of every step while requests finish and others wait for a slot.

    Requests have prompts of `prompt` tokens and `lens` output tokens; at most `slots` run at once.

    Returns: Requests are numbered from 0, iterations from 1.
        batches: By iteration: the requests that computed in it.
        admitted_in [iteration]: By request: the iteration that ran it first.
        finished_in [iteration]; total [iterations]
        tokens_per_request_and_step [tokens]: The most output that one request got in one iteration.
        idle_gaps [iterations]: Iterations with a free slot and a waiting request.
        tokenless_rows [rows]: Rows that computed without giving a token: chunks of unfinished prompts.
    """
    engine = ctx.core(
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        num_blocks=num_blocks,
        enable_prefix_caching=False,
        traced=True,
    )
    engine.run([Ask(f"r{i}", prompt, n) for i, n in enumerate(lens)])
    outcomes = list(engine.outcomes.values())
    batches = [[int(name[1:]) for name in step.rows] for step in engine.steps]
    last_admitted = max(outcome.admitted for outcome in outcomes)
    return Result(
        batches=batches,
        admitted_in=[o.admitted + 1 for o in outcomes],
        finished_in=[o.finished + 1 for o in outcomes],
        total=engine.num_steps,
        tokens_per_request_and_step=max(max(Counter(o.token_steps).values()) for o in outcomes),
        idle_gaps=sum(len(batch) < slots for batch in batches[:last_admitted]),
        tokenless_rows=sum(map(len, batches)) - sum(len(o.token_steps) for o in outcomes),
    )


@experiment("E14", "E15")
def mixed_step(
    ctx: Context,
    decodes: int = arg(8, 1, 256),
    prompt: int = arg(200, 1, 16_000),
    budget: int = arg(512, 1, 16_384),
    chunked: bool = True,
) -> Result:
    """Send a prompt to an engine that decodes, with and without chunked prefill, and look at its steps.

    `decodes` requests decode when the prompt arrives. Without chunked prefill the budget must hold the longest prompt,
    so a smaller budget is raised.

    Returns: The prompt is added before step 2.
        mixed_steps [steps]: Steps with tokens of the prompt and of decodes.
        chunks [tokens]: Chunks of the prompt, step by step.
        is_cut: The prompt took more than one step.
        ttft [steps]: Steps from the prompt's arrival to its first token; at least 1.
        decode_gap [steps]: Longest gap between two tokens of a decode; 1: no delay.
        largest_step [tokens]: Tokens of the largest step after the arrival, which delays the decodes most.
    """
    if not chunked:
        budget = max(budget, prompt + 2)
    engine = ctx.core(
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, 512),
        max_model_len=max(prompt, 100) + 2 if not chunked else 100_000,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=False,
        traced=True,
    )
    length = 24 + -(-prompt // max(1, budget - decodes)) if budget > decodes else 24
    asks = [Ask(f"d{i}", 1, min(length, 97)) for i in range(decodes)]
    engine.run([*asks, Ask("new", prompt, 2, arrival=2)])
    new = engine.outcomes["new"]
    with_new = [step for step in engine.steps if "new" in step.rows and step.index <= new.token_steps[0]]
    return Result(
        mixed_steps=sum(len(step.rows) > 1 for step in with_new),
        chunks=[step.rows["new"][1] for step in with_new],
        is_cut=len(with_new) > 1,
        ttft=new.token_steps[0] - new.arrival + 1,
        decode_gap=max(engine.outcomes[ask.request_id].longest_gap for ask in asks),
        largest_step=max(step.num_tokens for step in engine.steps[2:]),
    )


@experiment("E66")
def hang_up(
    ctx: Context,
    prompt: int = arg(100, 1, 4000),
    output: int = arg(80, 2, 1000),
    at_step: int = arg(20, 0, 1000),
    num_blocks: int = arg(12, 2, 1000),
    block_size: int = arg(16, 1, 256),
    budget: int = arg(8192, 1, 8192),
) -> Result:
    """Abort a request while it waits, in its prefill or in its decode, and count what that frees.

    r0 has the engine to itself; r1 has the same lengths, arrives at step 1 and does not fit beside r0.

    Returns: Request r0 is aborted before step `at_step`; r1 waits for its memory.
        state: State of r0 at the abort: waiting, prefill or decode.
        blocks_before [blocks]: Blocks in use just before the abort.
        blocks_after [blocks]: Blocks in use just after it.
        freed [blocks]
        wasted_tokens [tokens]: Positions that were computed for r0.
        streamed_tokens [tokens]
        next_started [step]: The step that ran r1 first.
        next_would_start [step]: The same without the abort.
        saved_tokens [tokens]: Positions that r0 would still have computed.
    """
    sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_num_batched_tokens": budget}
    settings: dict[str, Any] = {"enable_prefix_caching": False, **sizes}
    asks = [Ask("r0", prompt, output), Ask("r1", prompt, output, arrival=1)]
    patient = ctx.core(**settings).run(asks)

    engine = ctx.core(traced=True, **settings)
    engine.add(asks[0])
    while engine.num_steps < at_step and engine.scheduler.has_unfinished():
        engine.step()
        if engine.num_steps == 1:
            engine.add(asks[1])
    outcome = engine.outcomes["r0"]
    state = "decode" if outcome.token_steps else "prefill" if outcome.computed_tokens else "waiting"
    before = engine.used_blocks
    engine.abort("r0")
    after = engine.used_blocks
    engine.run([] if "r1" in engine.outcomes else asks[1:])
    return Result(
        state="finished" if outcome.finished is not None else state,
        blocks_before=before,
        blocks_after=after,
        freed=before - after,
        wasted_tokens=outcome.computed_tokens,
        streamed_tokens=len(outcome.token_steps),
        next_started=engine.outcomes["r1"].admitted,
        next_would_start=patient.outcomes["r1"].admitted,
        saved_tokens=prompt + output - 1 - outcome.computed_tokens,
    )
