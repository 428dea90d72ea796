"""Adapters over several engines behind the gateway's routing policies."""

from typing import Any

from quizzes.experiments import Ask, Context, CoreEngine, Inconclusive, Result, arg, experiment

MAX_STEPS = 50_000


@experiment("E47", "E21")
def adapter_routing(
    ctx: Context,
    replicas: int = arg(3, 1, 8),
    max_loras: int = arg(2, 1, 16),
    adapters: list[str] = arg(["a", "b", "c", "d"] * 6, chars=(1, 20), count=(1, 400)),
    output: int = arg(1, 1, 100),
    every: int = arg(1, 1, 50),
) -> Result:
    """Count adapter loads of engines behind the gateway: round robin, least loaded, and by adapter (lora-affinity).

    Serves one request per entry of `adapters` with `output` tokens, a new one every `every` steps. Each engine has
    `max_loras` slots. The gateway's policy decides by the engines' unfinished requests and by the adapters that it
    sent to each, as for servers; the loads are those of the engines' own slots.

    Returns: By policy.
        loads_round_robin, loads_least_loaded, loads_affine [loads]: Adapters brought to a device.
        waits_round_robin, waits_least_loaded, waits_affine [request-steps]: Requests that waited for a slot.
        steps_round_robin, steps_least_loaded, steps_affine [steps]: Until the last request has finished.
        busiest_round_robin, busiest_least_loaded, busiest_affine [share]: Share of the requests on the busiest engine.
        distinct [adapters]: Adapters in the workload: at least so many loads are needed.
        slots [slots]: Slots of all engines together.
    """
    policies = {"round_robin": "round-robin", "least_loaded": "least-loaded", "affine": "lora-affinity"}
    figures: dict[str, Any] = {}
    for name, policy in policies.items():
        engines, steps = _serve(ctx, policy, replicas, max_loras, adapters, output, every)
        stats = [step.stats for engine in engines for step in engine.steps]
        figures[f"loads_{name}"] = sum(stat.num_lora_loads for stat in stats)
        figures[f"waits_{name}"] = sum(stat.num_lora_waits for stat in stats)
        figures[f"steps_{name}"] = steps
        figures[f"busiest_{name}"] = max(len(engine.outcomes) for engine in engines) / len(adapters)
    return Result(**figures, distinct=len(set(adapters)), slots=replicas * max_loras)


def _serve(
    ctx: Context, policy: str, replicas: int, max_loras: int, adapters: list[str], output: int, every: int
) -> tuple[list[CoreEngine], int]:
    """Return the engines after the last request, and the number of steps."""
    try:
        from engine.gateway.backend import Adapters, Backend, GatewayRequest
    except ImportError as error:
        raise Inconclusive(f"the gateway needs {error.name}: pip install -e '.[serve]'") from None
    from engine.gateway.config import BackendSettings
    from engine.gateway.limits import CircuitBreaker
    from engine.gateway.route import Route

    listed = dict.fromkeys(adapters, True)
    engines = [ctx.core(max_loras=max_loras) for _ in range(replicas)]
    backends = [
        Backend(
            index,
            BackendSettings(name=f"engine-{index}", url="http://127.0.0.1"),
            CircuitBreaker(failures=1, open_s=1),
            adapters=Adapters(listed, max_loras),
        )
        for index in range(replicas)
    ]
    route = Route(backends, policy, canary=None)
    running: dict[str, tuple[GatewayRequest, Backend]] = {}
    for step in range(MAX_STEPS):
        if step % every == 0 and step // every < len(adapters):
            name = adapters[step // every]
            request = GatewayRequest(f"r{step // every}", "", name, "", num_tokens=8, chunks=())
            backend, _ = route.decide(request, now=step)
            assert backend is not None  # every engine is healthy
            backend.begin(request, now=step)
            running[request.id] = (request, backend)
            engines[backend.index].add(Ask(request.id, 8, output, lora=name))
        for engine in engines:
            if engine.scheduler.has_unfinished():
                engine.step()
        for request, backend in list(running.values()):
            if engines[backend.index].outcomes[request.id].finished is not None:
                backend.end(request, now=step, ok=True)
                del running[request.id]
        if not running and step // every >= len(adapters) - 1:
            return engines, step + 1
    raise Inconclusive(f"not finished after {MAX_STEPS:,} steps; use fewer requests or shorter outputs")
