"""Lower bound of a step's time: the datasheet's rates without losses and overhead."""

from __future__ import annotations

from dataclasses import dataclass

from engine.sim.cost import CostModel, Efficiency, Rates, StepLoad, pairs_of
from engine.sim.memory import Deployment
from quizzes.experiments.simulated import deploy

PERFECT = Efficiency(
    gemm_flops=1,
    bandwidth=1,
    attention_flops=1,
    attention_bandwidth=1,
    link=1,
    step_overhead=0,
    eager_overhead=0,
    row_overhead=0,
)


@dataclass(frozen=True)
class Floor:
    """The engine's cost model with perfect kernels."""

    deployment: Deployment
    cost: CostModel

    @property
    def peak(self) -> float:
        """FLOP/s of the linear layers' type."""
        return self.deployment.hardware.peak(
            self.deployment.precision.compute_dtype(self.deployment.hardware)
        )

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.deployment.hardware.bytes_per_s

    @property
    def ridge(self) -> float:
        return self.peak / self.bandwidth

    def attention_flops(self, load: StepLoad) -> float:
        pairs = load.decode_context + load.prefill_pairs
        return pairs * self.deployment.model.attention_flops_per_pair

    def kv_bytes(self, load: StepLoad) -> float:
        positions = load.decode_context + load.prefill_context
        return positions * self.deployment.kv_bytes_per_token_per_device


def floor_of(model: str, hardware: str, dtype: str, kv_cache_dtype: str = "auto") -> Floor:
    """Named model on one named device."""
    deployment = deploy(model, hardware, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    compute = deployment.precision.compute_dtype(deployment.hardware)
    return Floor(deployment, CostModel(deployment, Rates.of(deployment.hardware, compute, PERFECT)))


def load_of_rows(rows: int, tokens_per_row: int, context: int) -> StepLoad:
    """Rows that have `context` tokens in the cache and compute `tokens_per_row` more; each gets one token."""
    tokens = rows * tokens_per_row
    if tokens_per_row == 1:
        return StepLoad(rows, tokens, rows, decode_context=rows * (context + 1))
    return StepLoad(
        rows,
        tokens,
        rows,
        prefill_pairs=rows * pairs_of(context, tokens_per_row, None),
        prefill_context=rows * (context + tokens_per_row),
    )
