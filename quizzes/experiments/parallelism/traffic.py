from engine.sim.cost import CostModel, StepLoad
from engine.sim.hardware import get_hardware, get_link
from engine.sim.interconnect import step_traffic
from engine.sim.memory import Deployment
from engine.sim.models import get_model
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E46")
def traffic(
    ctx: Context,
    model: str = "llama-3.1-70b",
    tp: int = arg(8, 1, 64),
    pp: int = arg(1, 1, 16),
    tokens: int = arg(32, 1, 65_536),
    sampled: int | None = arg(None, 0, 65_536),
    link: str = "nvlink4",
    hardware: str = "h100",
    value_bytes: int = arg(2, 1, 4),
) -> Result:
    """Count messages and bytes between the ranks of a real model in one step, and price them on a link.

    The step has `tokens` tokens. sampled: rows that get a token; None: all (a decode step).

    Returns:
        One step, from the rank that samples.
        all_reduces [calls]: All-reduces of tensor parallelism: two per layer, and one for the embedding.
        all_reduce_bytes [B]: Payload of all of them.
        bytes_per_token [B]: Payload over the step's tokens; for pipeline stages the boundaries' bytes.
        boundaries [sends]: Boundaries between pipeline stages.
        boundary_bytes [B]: Bytes of one crossing.
        gather_bytes [B]: One rank's part of the logits.
        ms [ms]: Time of all messages over `link`, one after the other, without overlap.
        step_ms [ms]: Time of the step's arithmetic and memory traffic by the cost model, without messages.
        share [share]: ms / (ms + step_ms).
    """
    shape = get_model(model)
    rows = tokens if sampled is None else sampled
    said = step_traffic(
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        vocab_size=shape.vocab_size,
        value_bytes=value_bytes,
        num_tokens=tokens,
        num_sampled=rows,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
    )
    ms = 1e3 * said.seconds(get_link(link))
    cost = CostModel(Deployment(shape, get_hardware(hardware), tp=tp, pp=pp))
    load = StepLoad(rows, tokens, rows, decode_context=512 * rows)
    parts = cost.parts(load)
    step_ms = 1e3 * (sum(parts.values()) - parts["collectives"])
    payload = said.all_reduce_bytes if tp > 1 else said.num_boundaries * said.boundary_bytes
    return Result(
        all_reduces=said.num_all_reduces,
        all_reduce_bytes=said.all_reduce_bytes,
        bytes_per_token=payload / tokens,
        boundaries=said.num_boundaries,
        boundary_bytes=said.boundary_bytes,
        gather_bytes=said.gather_bytes,
        ms=ms,
        step_ms=step_ms,
        share=ms / (ms + step_ms) if ms else 0.0,
    )
