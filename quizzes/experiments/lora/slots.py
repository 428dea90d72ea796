from quizzes.experiments import Ask, Context, CoreEngine, Result, arg, experiment


@experiment("E21")
def slots(
    ctx: Context,
    max_loras: int = arg(2, 1, 64),
    adapters: list[str] = arg(["a", "b", "c", "a", "b", "c"], chars=(1, 20), count=(1, 100)),
    output: int = arg(4, 1, 200),
    arrivals: list[int] = arg([], 0, 10_000, count=(0, 100)),
    prompt: int = arg(8, 1, 2000),
    max_num_seqs: int = arg(64, 1, 256),
) -> Result:
    """Count loads, evictions and waits of adapters in the slots of a device.

    Serves one request per entry of `adapters`, with `output` tokens each; "-" is a request without an adapter.
    arrivals: the step before which each request comes; empty: all come at once.

    Returns:
        loads [loads]: Adapters brought to the device.
        evictions [evictions]: Adapters that lost their slot to another one.
        waits [request-steps]: Requests that could not start because no slot was free, counted in every step.
        steps [steps]
        steps_without_limit [steps]: Steps with a slot for every adapter.
        first_token [step]: Step of the first token, by request.
        finished [step]
        loaded_order: Adapters in the order in which they came to the device, repeats included.
        loads_while_in_use [loads]: Loads into the slot of an adapter with a running request, which would change its
            weights midway.
        adapters_in_a_step [adapters]: Maximum number of different adapters in one step.
    """
    times = [*arrivals, *[0] * len(adapters)][: len(adapters)]
    asks = [
        Ask(f"r{i}", prompt, output, arrival=when, lora=None if name == "-" else name)
        for i, (name, when) in enumerate(zip(adapters, times, strict=True))
    ]

    def serve(num_slots: int, traced: bool) -> CoreEngine:
        settings = {"max_num_seqs": max_num_seqs, "scheduler": {"max_loras": num_slots}}
        return ctx.core(traced=traced, **settings).run(asks)

    engine = serve(max_loras, traced=True)
    free = serve(len(set(adapters)), traced=False)
    name_of = {ask.request_id: ask.lora for ask in asks}
    loads: list[str] = []
    while_in_use, widest = 0, 0
    slot_holder: dict[int, str] = {}
    running: set[str] = set()
    for step in engine.steps:
        for name, slot in step.plan.lora_loads:
            loads.append(name)
            while_in_use += slot_holder.get(slot) in {name_of[r] for r in running}
            slot_holder[slot] = name
        ended = {r for r in running if engine.outcomes[r].finished == step.index}
        running = (running | set(step.rows)) - ended
        running -= {r for r in step.rows if engine.outcomes[r].finished == step.index}
        widest = max(widest, len({name_of[r] for r in step.rows} - {None}))
    ids = [ask.request_id for ask in asks]
    return Result(
        loads=sum(step.stats.num_lora_loads for step in engine.steps),
        evictions=sum(step.stats.num_lora_evictions for step in engine.steps),
        waits=sum(step.stats.num_lora_waits for step in engine.steps),
        steps=engine.num_steps,
        steps_without_limit=free.num_steps,
        first_token=[engine.outcomes[r].first_token for r in ids],
        finished=[engine.outcomes[r].finished for r in ids],
        loaded_order=loads,
        loads_while_in_use=while_in_use,
        adapters_in_a_step=widest,
    )
