from typing import Literal

from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E20", "E17")
def priority_arrival(
    ctx: Context,
    policy: Literal["fcfs", "priority"] = "priority",
    slots: int = arg(4, 1, 32),
    blocks: int = arg(200, 4, 400),
    low: int = arg(6, 1, 64),
    low_prompt: int = arg(16, 1, 200),
    low_output: int = arg(30, 1, 200),
    urgent_prompt: int = arg(16, 1, 200),
    urgent_output: int = arg(40, 1, 200),
    arrival: int = arg(5, 1, 100),
) -> Result:
    """Send an important request while unimportant ones run, and see which request is preempted, and when.

    `low` requests of priority 5 start at step 0, one of priority 0 arrives at step `arrival`. Block size 16. The lower
    value goes first, as in vLLM. A waiting request takes no blocks from running ones: it goes to the head of the
    queue. A running request that needs a block may preempt the least important running one.

    Returns:
        urgent_admitted [step]
        urgent_wait [steps]
        queue_position [place]: Position of the important request among those admitted after its arrival; 1 is next.
        preemptions_before: Between its arrival and its admission.
        preemptions_total
        victims: Preempted requests in order; low0 is the oldest unimportant one.
        urgent_preempted
        reason: Why it waited at first; empty if it did not.
    """
    engine = ctx.core(policy=policy, max_num_seqs=slots, num_blocks=blocks, traced=True)
    asks = [Ask(f"low{i}", low_prompt, low_output, priority=5) for i in range(low)]
    engine.run([*asks, Ask("urgent", urgent_prompt, urgent_output, arrival=arrival, priority=0)])
    urgent = engine.outcomes["urgent"]
    came, admitted = urgent.arrival, urgent.admitted
    assert admitted is not None
    later = [
        outcome.admitted
        for outcome in engine.outcomes.values()
        if outcome.admitted is not None and outcome.admitted >= came
    ]
    reason = engine.steps[came].why_not("urgent")
    return Result(
        urgent_admitted=admitted,
        urgent_wait=admitted - came,
        queue_position=1 + sum(step < admitted for step in later),
        preemptions_before=sum(len(step.preempted) for step in engine.steps[came : admitted + 1]),
        preemptions_total=engine.num_preemptions,
        victims=[name for step in engine.steps for name in step.preempted],
        urgent_preempted=bool(urgent.preemptions),
        reason=str(reason.reason) if reason else "",
    )
