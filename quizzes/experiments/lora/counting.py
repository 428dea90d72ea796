"""Adapters in bytes, slots and cache keys, counted."""

from typing import Literal

from quizzes.experiments import Ask, Context, CoreEngine, Result, arg, deploy, experiment


@experiment("E43")
def footprint(
    model: str = "llama-3.1-8b",
    rank: int = arg(16, 1, 512),
    max_rank: int = arg(16, 1, 512),
    modules: list[Literal["q", "k", "v", "o", "gate", "up", "down"]] = arg(
        ["q", "k", "v", "o", "gate", "up", "down"], count=(1, 7)
    ),
    adapters: int = arg(50, 1, 1000),
    hardware: str = "h100",
    value_bytes: int = arg(2, 1, 4),
) -> Result:
    """Count bytes of adapters, of the slots that hold them, and of one merged replica per adapter.

    An adapter has rank x (in + out) parameters per matrix. Slots have room for max_rank in every module whatever an
    adapter uses, as in vLLM. Models with dense layers only.

    Returns: Weights in 16 bits unless said otherwise.
        adapter_bytes [B]; adapter_mb [MB]; base_bytes [B]
        share_of_base [share]: One adapter over the base.
        shared_bytes [B]: One base with `adapters` slots of `max_rank`, all seven modules: what the engine sets aside.
        replicas_bytes [B]: A merged copy of the base for each adapter.
        devices_shared, devices_replicas [devices]: Devices that hold the weights of each form.
        saving [x]
        kv_tokens_lost [tokens]: KV tokens that the slots displace.
        load_ms [ms]: The adapter's bytes over the device's host link at full rate.
    """
    deployment = deploy(model, hardware)
    shape, device = deployment.model, deployment.hardware
    hidden, inner, heads = shape.hidden_size, shape.intermediate_size, shape.num_heads * shape.head_dim
    kv = shape.num_kv_heads * shape.head_dim
    outer = {"q": heads, "k": kv, "v": kv, "o": heads, "gate": inner, "up": inner, "down": inner}
    sizes = {name: hidden + other for name, other in outer.items()}
    one = rank * sum(sizes[name] for name in set(modules)) * shape.num_layers * value_bytes
    slot = max_rank * sum(sizes.values()) * shape.num_layers * value_bytes
    base = int(deployment.weight_bytes)
    shared = base + adapters * slot
    room = int(device.memory_bytes * deployment.gpu_memory_utilization)
    return Result(
        adapter_bytes=one,
        adapter_mb=one / 1e6,
        base_bytes=base,
        share_of_base=one / base,
        shared_bytes=shared,
        replicas_bytes=adapters * base,
        devices_shared=-(-shared // room),
        devices_replicas=adapters * -(-base // room),
        saving=adapters * base / shared,
        kv_tokens_lost=int(adapters * slot // deployment.kv_bytes_per_token),
        load_ms=1e3 * one / device.host_link.bytes_per_s,
    )


@experiment("E43", "E10")
def isolation(
    ctx: Context,
    adapters: list[str] = arg(["-", "a", "b", "a", "-"], count=(1, 60)),
    prompt: int = arg(100, 1, 4000),
    block_size: int = arg(16, 1, 256),
    max_loras: int = arg(8, 1, 64),
) -> Result:
    """Send one prompt under several adapters and see which requests reuse KV, and how often adapters are loaded.

    Returns: Each entry of `adapters` is one request ("-": the base), sent when the one before has finished.
        cached_tokens [tokens]: Prefix-cache hit of each.
        computed_tokens [tokens]: Prompt tokens that went through the model, all together.
        kv_copies [copies]: Copies of the prompt's blocks in the cache: one for each adapter, the base included.
        loads [loads]: Adapters brought to the device.
        requests [requests]
    """
    engine = ctx.core(block_size=block_size, max_loras=max_loras, traced=True)
    for index, name in enumerate(adapters):
        engine.add(Ask(f"r{index}", list(range(prompt)), 1, lora=None if name == "-" else name))
        while engine.scheduler.has_unfinished():
            engine.step()
    engine.close()
    full = prompt // block_size
    return Result(
        cached_tokens=engine.cached_tokens,
        computed_tokens=len(adapters) * prompt - sum(engine.cached_tokens),
        kv_copies=len(engine.scheduler.kv.pool.cached) // full if full else 0,
        loads=sum(step.stats.num_lora_loads for step in engine.steps),
        requests=len(adapters),
    )


@experiment("E21")
def slots(
    ctx: Context,
    max_loras: int = arg(2, 1, 64),
    adapters: list[str] = arg(["a", "b", "c", "a", "b", "c"], chars=(1, 20), count=(1, 100)),
    output: int = arg(4, 1, 200),
    arrivals: list[int] = arg([], 0, 10_000, count=(0, 100)),
    prompt: int = arg(8, 1, 2000),
    max_num_seqs: int = arg(64, 1, 256),
    max_cpu_loras: int = arg(0, 0, 64),
    prefetch: int = arg(0, 0, 64),
) -> Result:
    """Count loads, evictions and waits of adapters in the slots of a device.

    Serves one request per entry of `adapters`, with `output` tokens each; "-" is a request without an adapter.
    arrivals: the step before which each request comes; empty: all come at once. max_cpu_loras: adapters in host memory;
    0: as many as max_loras. An adapter comes there when its first request arrives. prefetch: adapters of waiting
    requests that are fetched ahead (lora_prefetch).

    Returns:
        loads [loads]: Adapters brought to the device.
        evictions [evictions]: Adapters that lost their slot to another one.
        waits [request-steps]: Requests that could not start because no slot was free, counted in every step.
        reads [reads]: Adapters read from disk in the step that needed them, because host memory had dropped them.
        prefetches [prefetches]: Adapters of waiting requests that were fetched while steps ran.
        steps [steps]
        steps_without_limit [steps]: Steps with a slot for every adapter.
        first_token [step]: Step of the first token, by request.
        finished [step]
        loaded_order: Adapters in the order in which they came to the device, repeats included.
        loads_while_in_use [loads]: Loads into the slot of an adapter that runs, which would change its weights.
        adapters_in_a_step [adapters]: Maximum number of different adapters in one step.
    """
    times = [*arrivals, *[0] * len(adapters)][: len(adapters)]
    asks = [
        Ask(f"r{i}", prompt, output, arrival=when, lora=None if name == "-" else name)
        for i, (name, when) in enumerate(zip(adapters, times, strict=True))
    ]

    def serve(num_slots: int, traced: bool) -> CoreEngine:
        host = {"max_cpu_loras": max(max_cpu_loras, num_slots), "lora_prefetch": prefetch}
        return ctx.core(max_num_seqs=max_num_seqs, max_loras=num_slots, traced=traced, **host).run(asks)

    engine = serve(max_loras, traced=True)
    lora_of = {ask.request_id: ask.lora for ask in asks}
    outcomes = [engine.outcomes[ask.request_id] for ask in asks]
    loads: list[str] = []
    while_in_use = 0
    slot_holder: dict[int, str] = {}
    running: set[str] = set()
    for step in engine.steps:
        for name, slot in (*step.plan.lora_loads, *step.plan.lora_prefetches):
            if slot < 0:
                continue
            loads.append(name)
            while_in_use += slot_holder.get(slot) in {lora_of[r] for r in running}
            slot_holder[slot] = name
        running |= set(step.rows)
        running = {r for r in running if engine.outcomes[r].finished != step.index}
    stats = [step.stats for step in engine.steps]
    return Result(
        loads=sum(stat.num_lora_loads for stat in stats),
        evictions=sum(stat.num_lora_evictions for stat in stats),
        waits=sum(stat.num_lora_waits for stat in stats),
        reads=sum(stat.num_lora_reads for stat in stats),
        prefetches=sum(stat.num_lora_prefetches for stat in stats),
        steps=engine.num_steps,
        steps_without_limit=serve(len(set(adapters)), traced=False).num_steps,
        first_token=[outcome.first_token for outcome in outcomes],
        finished=[outcome.finished for outcome in outcomes],
        loaded_order=loads,
        loads_while_in_use=while_in_use,
        adapters_in_a_step=max(len({lora_of[r] for r in step.rows} - {None}) for step in engine.steps),
    )
