"""Bytes exchanged by tensor and pipeline ranks in one step, and their time over a link.

    tensor parallel     2 all-reduces per layer and 1 for the embedding, of T x hidden values; the logits' gather
    pipeline parallel   1 send per boundary, of 2 x T x hidden values (the layer's output and the residual stream)

The counts are those of `engine/parallel.py`, which counts them in a real run (`StepStats.num_collectives`,
`collective_bytes`): `tests/parallel` compares the two. A ring all-reduce of n bytes over p ranks moves
2 (p - 1) / p * n through every link, in 2 (p - 1) steps; the gather has p - 1. Sources: Megatron-LM (arXiv 1909.08053,
section 3); the cost of a ring, Patarasuk and Yuan 2009; the time of a step, `Link.ring_latency`.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.sim.hardware import Link

LOGIT_BYTES = 4  # logits are fp32 for every dtype of the model


@dataclass(frozen=True)
class StepTraffic:
    """Messages and bytes that the sampling rank contributes in one step."""

    tensor_parallel_size: int
    num_all_reduces: int
    all_reduce_bytes: int  # bytes of all all-reduces together
    gather_bytes: int  # bytes of this rank's part of the logits; 0: nothing is gathered
    num_boundaries: int  # boundaries between pipeline stages; each is crossed once
    boundary_bytes: int  # bytes of one crossing

    def seconds(self, link: Link, share: float = 1.0) -> float:
        """Return the time of all messages in turn over `link`, without overlap with compute.

        share: share of the link's bandwidth that messages reach.
        """
        size, speed = self.tensor_parallel_size, link.bytes_per_s * share
        total = self.num_boundaries * (link.latency_s + self.boundary_bytes / speed)
        if size > 1:
            moved = 2 * (size - 1) / size * self.all_reduce_bytes
            total += self.num_all_reduces * link.ring_latency(2 * (size - 1)) + moved / speed
        if self.gather_bytes:
            total += link.ring_latency(size - 1) + self.gather_bytes * (size - 1) / speed
        return total


def step_traffic(
    *,
    hidden_size: int,
    num_layers: int,
    vocab_size: int,
    value_bytes: int,
    num_tokens: int,
    num_sampled: int,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> StepTraffic:
    """Return the traffic of a step of `num_tokens` tokens and `num_sampled` rows; value_bytes: size of the dtype.

    With pipeline stages, the all-reduces of all stages are counted.
    """
    size = tensor_parallel_size
    hidden_bytes = num_tokens * hidden_size * value_bytes
    num_all_reduces = 2 * num_layers + 1 if size > 1 else 0
    return StepTraffic(
        tensor_parallel_size=size,
        num_all_reduces=num_all_reduces,
        all_reduce_bytes=num_all_reduces * hidden_bytes,
        gather_bytes=num_sampled * vocab_size // size * LOGIT_BYTES if size > 1 else 0,
        num_boundaries=pipeline_parallel_size - 1,
        boundary_bytes=2 * hidden_bytes,
    )
