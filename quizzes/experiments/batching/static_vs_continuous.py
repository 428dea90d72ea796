from quizzes.experiments import Ask, Context, Result, arg, experiment

PROMPT = 1
"""A prompt of one token: its first output comes in the step that reads it, so only the outputs count."""


@experiment("E13")
def static_vs_continuous(
    ctx: Context,
    slots: int = arg(4, 1, 64),
    lens: list[int] = arg([12, 40, 8, 25, 60, 9, 14, 33], 1, 2000, count=(1, 200)),
) -> Result:
    """Compare static with continuous batching on one list of output lengths (Orca, OSDI 2022, section 3).

    Both run on the engine's scheduler with `slots` as max_num_seqs. Static batching admits the next `slots` requests
    only when the previous batch is empty; continuous batching admits a request whenever a slot is free.

    Returns:
        Steps until all requests have finished. Slot use: tokens generated per slot and step.
        static_steps, continuous_steps [steps]
        static_slot_use, continuous_slot_use [share]
        speedup [x]
        static_finished, continuous_finished [step]: By request, in order of arrival: step of its last token, from 0.
    """
    continuous = ctx.core(max_num_seqs=slots, traced=True)
    continuous.run([Ask(f"r{i}", PROMPT, n) for i, n in enumerate(lens)])

    static = ctx.core(max_num_seqs=slots)
    for start in range(0, len(lens), slots):
        static.run([Ask(f"r{start + i}", PROMPT, n) for i, n in enumerate(lens[start : start + slots])])

    def finished(engine: object) -> list[int]:
        return [engine.outcomes[f"r{i}"].finished for i in range(len(lens))]  # type: ignore[attr-defined]

    total = sum(lens)
    return Result(
        static_steps=static.num_steps,
        continuous_steps=continuous.num_steps,
        static_slot_use=total / (slots * static.num_steps),
        continuous_slot_use=total / (slots * continuous.num_steps),
        speedup=static.num_steps / continuous.num_steps,
        static_finished=finished(static),
        continuous_finished=finished(continuous),
    )
