"""One replica in virtual time that decodes a batch, with or without drafts."""

from __future__ import annotations

from dataclasses import dataclass

from engine.sim.cost import CostModel, Efficiency, Rates
from engine.sim.memory import Deployment
from engine.sim.report import RunReport
from engine.sim.run import make_engine, simulate
from engine.sim.speculation import Speculation
from engine.sim.workload import SimRequest
from quizzes.experiments.simulated import deploy


@dataclass(frozen=True)
class Target:
    """A model and its hardware."""

    model: str
    hardware: str
    tp: int = 1


def serve(
    target: Target,
    *,
    batch: int,
    prompt: int,
    output: int,
    num_drafts: int = 0,
    acceptance: float = 0.0,
    draft: Target | None = None,
    seed: int = 0,
) -> RunReport:
    """All requests at once, decoded to the end. num_drafts=0: without drafts; draft None: drafts cost nothing.

    Steps of k + 1 tokens per row are replayed from graphs, as vLLM captures them: no overhead per layer.
    """
    longest = prompt + output + num_drafts + 1
    deployed = deployment(target, batch, longest)
    shares = Efficiency(eager_overhead=0.0)

    def rates(deployed: Deployment) -> Rates:
        return Rates.of(deployed.hardware, deployed.precision.compute_dtype(deployed.hardware), shares)

    speculation = None
    if num_drafts:
        drafting = None if draft is None else deployment(draft, batch, longest)
        price = None if drafting is None else CostModel(drafting, rates(drafting))
        speculation = Speculation(num_drafts, acceptance, price, seed)
    blocks = batch * (-(-longest // deployed.block_size) + 2) + 2
    engine = make_engine(
        deployed,
        rates=rates(deployed),
        num_blocks=blocks,
        enable_prefix_caching=False,
        speculation=speculation,
        fast_forward=not num_drafts,
    )
    return simulate(engine, [SimRequest(index, 0.0, prompt, output) for index in range(batch)])


def deployment(target: Target, batch: int, max_model_len: int) -> Deployment:
    """Return a deployment whose budget never splits a step."""

    return deploy(
        target.model,
        target.hardware,
        tp=target.tp,
        max_num_seqs=max(batch, 1),
        max_num_batched_tokens=65_536,
        max_model_len=max_model_len,
    )
