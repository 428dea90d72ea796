"""Process groups of tensor and pipeline parallelism, and their collectives.

    tensor_parallel_size=2, pipeline_parallel_size=2: four ranks, each with a quarter of the weights

                       stage 0: layers 0 .. 2         stage 1: layers 3 .. 5
        tensor rank 0      rank 0    ---- hidden ---->   rank 2
                             |  all_reduce                 |  all_reduce, gather of the logits
        tensor rank 1      rank 1    ---- hidden ---->   rank 3

A *tensor* group splits every matrix: each rank computes with its rows or columns, and sums or gathers join the
parts (twice per layer). A *pipeline* group splits the list of layers: each stage hands its result to the next.
Ranks are numbered as in vLLM: the tensor rank changes fastest.

Layers take their group from `current_ranks` when they are built, as tensors take the current device. Without
parallelism every group has one member, and its methods return their arguments.

Sources: Megatron-LM (arXiv 1909.08053, section 3), GPipe (arXiv 1811.06965); vLLM distributed/parallel_state.py
and distributed/communication_op.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor


class Traffic:
    """Traffic of one rank: calls by operation (all_reduce, gather, send, receive), and bytes that it contributes."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.num_bytes = 0

    def add(self, operation: str, tensor: Tensor) -> None:
        self.calls[operation] += 1
        self.num_bytes += tensor.nbytes


@dataclass(frozen=True, slots=True)
class Shard:
    """Return part `index` of `count` equal parts of a tensor along `dim`."""

    dim: int
    index: int
    count: int

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        return tuple(size * self.count if dim == self.dim else size for dim, size in enumerate(shape))

    def slices(self, whole_shape: Sequence[int]) -> tuple[slice, ...]:
        """Return the index of the part in the whole tensor."""
        size = whole_shape[self.dim] // self.count
        cut = [slice(None)] * len(whole_shape)
        cut[self.dim] = slice(self.index * size, (self.index + 1) * size)
        return tuple(cut)


class Group:
    """The ranks that one rank communicates with.

    Every member must call the same operations in the same order. With one member they do nothing.
    """

    def __init__(
        self, ranks: Sequence[int] = (0,), rank: int = 0, process_group: dist.ProcessGroup | None = None
    ) -> None:
        """ranks: the members' world ranks. rank: index of this process among them."""
        self.ranks, self.rank, self.size = tuple(ranks), rank, len(ranks)
        self.traffic = Traffic()
        self._process_group = process_group

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def split(self, size: int) -> int:
        """Return this member's part of `size`, which `resolve` has checked to be divisible."""
        if size % self.size:
            raise ValueError(f"{size} does not split into {self.size} equal parts")
        return size // self.size

    def shard(self, dim: int) -> Shard | None:
        """Return this member's part of a tensor along `dim`; None: all of it."""
        return None if self.size == 1 else Shard(dim, self.rank, self.size)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum x over all members in place; the result is bitwise equal on all of them."""
        if self.size > 1:
            self.traffic.add("all_reduce", x)
            dist.all_reduce(x, group=self._process_group)
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        """Gather every member's x [S, n] to [S, size * n] on the first member; None on the others."""
        if self.size == 1:
            return x
        self.traffic.add("gather", x)
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in self.ranks] if self.is_first else None
        dist.gather(x, parts, dst=self.ranks[0], group=self._process_group)
        return None if parts is None else torch.cat(parts, dim=-1)

    def send_next(self, x: Tensor) -> None:
        """Send x to the next member."""
        self.traffic.add("send", x)
        dist.send(x.contiguous(), dst=self.ranks[self.rank + 1], group=self._process_group)

    def receive_previous(self, x: Tensor) -> Tensor:
        """Receive x from the previous member."""
        self.traffic.add("receive", x)
        dist.recv(x, src=self.ranks[self.rank - 1], group=self._process_group)
        return x


@dataclass(frozen=True, slots=True)
class Ranks:
    """The groups of this process."""

    tensor: Group = field(default_factory=Group)
    pipeline: Group = field(default_factory=Group)

    @property
    def is_alone(self) -> bool:
        return self.tensor.size == self.pipeline.size == 1

    def total_traffic(self) -> tuple[int, int]:
        """Return calls and bytes so far, over all groups."""
        tensor, pipeline = self.tensor.traffic, self.pipeline.traffic
        return tensor.calls.total() + pipeline.calls.total(), tensor.num_bytes + pipeline.num_bytes

    def layers(self, num_layers: int) -> range:
        """Return the layers of this stage. The last stage, which has the output head, gets none of the remainder."""
        stages = self.pipeline.size
        sizes = [num_layers // stages] * stages
        for extra in range(num_layers % stages):
            sizes[-2 - extra] += 1
        start = sum(sizes[: self.pipeline.rank])
        return range(start, start + sizes[self.pipeline.rank])


ALONE = Ranks()
_current: ContextVar[Ranks] = ContextVar("ranks", default=ALONE)


def current_ranks() -> Ranks:
    """Return the groups for layers that are being built."""
    return _current.get()


@contextmanager
def use_ranks(ranks: Ranks) -> Iterator[None]:
    """Build layers inside the block for these groups."""
    token = _current.set(ranks)
    try:
        yield
    finally:
        _current.reset(token)


def groups_of_world(
    tensor_parallel_size: int, pipeline_parallel_size: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the world ranks of every tensor group and of every pipeline group."""
    world = list(range(tensor_parallel_size * pipeline_parallel_size))
    tensor = [world[start : start + tensor_parallel_size] for start in world[::tensor_parallel_size]]
    return tensor, [world[rank::tensor_parallel_size] for rank in range(tensor_parallel_size)]


def join_world(
    rank: int, tensor_parallel_size: int, pipeline_parallel_size: int, store: dist.Store, device: torch.device
) -> Ranks:
    """Connect this process to the others; return when all are connected.

    gloo carries tensors between processes of one machine's CPU, NCCL those between GPUs.
    """
    is_cuda = device.type == "cuda"
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        store=store,
        rank=rank,
        world_size=tensor_parallel_size * pipeline_parallel_size,
        device_id=device if is_cuda else None,
    )
    mine = []
    for groups in groups_of_world(tensor_parallel_size, pipeline_parallel_size):
        for ranks in groups:  # every process must create every group
            process_group = dist.new_group(ranks) if len(ranks) > 1 else None
            if rank in ranks:
                mine.append(Group(ranks, ranks.index(rank), process_group))
    return Ranks(*mine)
