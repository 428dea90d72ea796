from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E07")
def prefill_saving(
    ctx: Context,
    model: str = "llama-3-8b",
    hardware: str = "a10g",
    prompt: int = arg(1500, 2, 32_000),
    prefix: int = arg(500, 0, 32_000),
    tp: int = arg(1, 1, 8),
) -> Result:
    """Price a prefix hit in milliseconds: TTFT of the same prompt with a cold and with a warm prefix.

    The first `prefix` tokens of the prompt are cached.

    Returns:
        Time to the first token on an idle engine, from the roofline of engine.sim.cost.
        cold_ms, warm_ms, saved_ms [ms]
        speedup [x]
        cached_tokens [tokens]
        flops_saved [FLOP]: Arithmetic of the linear layers: 2 x parameters x cached tokens.
    """
    prefix = min(prefix, prompt)
    shape = get_model(model)
    deployment = Deployment(shape, get_hardware(hardware), tp=tp, max_model_len=prompt + 16)
    engine = make_engine(deployment, num_blocks=3 * (prompt // 16 + 3))
    engine.run([SimRequest(i, 1000.0 * i, prompt, 1, 0, prefix) for i in range(2)])
    cold, warm = sorted(engine.recorder.finished, key=lambda record: record.arrival)
    return Result(
        cold_ms=1e3 * cold.ttft,
        warm_ms=1e3 * warm.ttft,
        saved_ms=1e3 * (cold.ttft - warm.ttft),
        speedup=cold.ttft / warm.ttft,
        cached_tokens=warm.num_cached_tokens,
        flops_saved=2.0 * (shape.common_params + shape.active_routed_params) * warm.num_cached_tokens,
    )
