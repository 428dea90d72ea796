"""Several processes, one model: who works with whom, and what they say to each other.

    tensor_parallel_size=2, pipeline_parallel_size=2: four ranks, each with a quarter of the weights

                       stage 0: layers 0 .. 2         stage 1: layers 3 .. 5
        tensor rank 0      rank 0    ---- hidden ---->   rank 2
                             |  all_reduce                 |  all_reduce, gather of the logits
        tensor rank 1      rank 1    ---- hidden ---->   rank 3

A *tensor* group splits every matrix: each rank computes with its rows or columns, and sums or gathers join the
parts (twice per layer). A *pipeline* group splits the list of layers: each stage hands its result to the next.
Ranks are numbered as in vLLM: the tensor rank changes fastest.

Layers ask for their group when they are built (`current_ranks`), as tensors ask for the current device. In a
process of its own every group has one member, and its methods return what they are given.

Sources: Megatron-LM (arXiv 1909.08053, section 3), GPipe (arXiv 1811.06965); vLLM distributed/parallel_state.py
and distributed/communication_op.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(slots=True)
class Traffic:
    """What one rank said to others: how often, and how many bytes it put in."""

    calls: dict[str, int] = field(default_factory=dict)
    """By operation: all_reduce, gather, send, receive."""
    num_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, operation: str, tensor: Tensor) -> None:
        self.calls[operation] = self.calls.get(operation, 0) + 1
        self.num_bytes[operation] = self.num_bytes.get(operation, 0) + tensor.nbytes

    @property
    def total_calls(self) -> int:
        return sum(self.calls.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes.values())


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count` equal parts of a tensor, cut along `dim`."""

    dim: int
    index: int
    count: int

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the whole tensor, of which a part has `shape`."""
        whole = list(shape)
        whole[self.dim] *= self.count
        return tuple(whole)

    def slices(self, whole_shape: Sequence[int]) -> tuple[slice, ...]:
        """Index of the part in the whole tensor."""
        size = whole_shape[self.dim] // self.count
        cut = [slice(None)] * len(whole_shape)
        cut[self.dim] = slice(self.index * size, (self.index + 1) * size)
        return tuple(cut)


class Group:
    """One rank's view of the ranks that it works with.

    Tensors are changed or sent as they are; every member must call the same operation in the same order. With one
    member nothing happens.
    """

    def __init__(
        self, ranks: Sequence[int] = (0,), rank: int = 0, process_group: dist.ProcessGroup | None = None
    ) -> None:
        """ranks: the members' numbers in the world. rank: this process's place among them."""
        self.ranks = tuple(ranks)
        self.rank = rank
        self.size = len(self.ranks)
        self.traffic = Traffic()
        self._process_group = process_group

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    def split(self, size: int) -> int:
        """This member's share of `size` things; that it divides was checked when the engine was set up."""
        if size % self.size:
            raise ValueError(f"{size} does not split into {self.size} equal parts")
        return size // self.size

    def shard(self, dim: int) -> Shard | None:
        """This member's part of a tensor cut along `dim`; None: all of it."""
        return None if self.size == 1 else Shard(dim, self.rank, self.size)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all members' x, in place, bit for bit the same everywhere."""
        if self.size > 1:
            self.traffic.add("all_reduce", x)
            dist.all_reduce(x, group=self._process_group)
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        """All members' x [S, n] side by side, [S, size * n], on the first one; None on the others."""
        if self.size == 1:
            return x
        self.traffic.add("gather", x)
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in self.ranks] if self.is_first else None
        dist.gather(x, parts, dst=self.ranks[0], group=self._process_group)
        return None if parts is None else torch.cat(parts, dim=-1)

    def send_next(self, x: Tensor) -> None:
        """To the member after this one."""
        self.traffic.add("send", x)
        dist.send(x.contiguous(), dst=self.ranks[self.rank + 1], group=self._process_group)

    def receive_previous(self, x: Tensor) -> Tensor:
        """Fill x with what the member before this one sends."""
        self.traffic.add("receive", x)
        dist.recv(x, src=self.ranks[self.rank - 1], group=self._process_group)
        return x


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place in every group."""

    tensor: Group = field(default_factory=Group)
    pipeline: Group = field(default_factory=Group)

    @property
    def is_output_rank(self) -> bool:
        """Whether this process gets the logits, samples and answers: tensor rank 0 of the last stage."""
        return self.tensor.is_first and self.pipeline.is_last

    @property
    def is_alone(self) -> bool:
        return self.tensor.size == self.pipeline.size == 1

    def total_traffic(self) -> tuple[int, int]:
        """Calls and bytes so far, in all groups."""
        traffic = (self.tensor.traffic, self.pipeline.traffic)
        return sum(t.total_calls for t in traffic), sum(t.total_bytes for t in traffic)

    def layers(self, num_layers: int) -> range:
        """The layers of this stage. Of those left over the last stage gets none: it has the output head."""
        stages = self.pipeline.size
        sizes = [num_layers // stages] * stages
        for extra in range(num_layers % stages):
            sizes[-2 - extra] += 1
        start = sum(sizes[: self.pipeline.rank])
        return range(start, start + sizes[self.pipeline.rank])


ALONE = Ranks()
_current: ContextVar[Ranks] = ContextVar("ranks", default=ALONE)


def current_ranks() -> Ranks:
    """The groups that layers built now belong to."""
    return _current.get()


@contextmanager
def use_ranks(ranks: Ranks) -> Iterator[None]:
    """Layers built inside the block belong to these groups."""
    token = _current.set(ranks)
    try:
        yield
    finally:
        _current.reset(token)


def groups_of_world(
    tensor_parallel_size: int, pipeline_parallel_size: int
) -> tuple[list[list[int]], list[list[int]]]:
    """World ranks of every tensor group and of every pipeline group."""
    tensor = [
        list(range(stage * tensor_parallel_size, (stage + 1) * tensor_parallel_size))
        for stage in range(pipeline_parallel_size)
    ]
    return tensor, [list(column) for column in zip(*tensor, strict=True)]


def join_world(
    rank: int,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    store: dist.Store,
    device: torch.device,
) -> Ranks:
    """Connect this process to the others; returns when all of them are there.

    gloo carries tensors between processes of one machine's CPU, NCCL those between GPUs.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    world_size = tensor_parallel_size * pipeline_parallel_size
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        device_id=device if device.type == "cuda" else None,
    )
    mine = []
    for groups in groups_of_world(tensor_parallel_size, pipeline_parallel_size):
        for ranks in groups:  # every process creates every group, also those it is not in
            process_group = dist.new_group(ranks) if len(ranks) > 1 else None
            if rank in ranks:
                mine.append(Group(ranks, ranks.index(rank), process_group))
    return Ranks(*mine)


def leave_world() -> None:
    """Close the connections."""
    if dist.is_initialized():
        dist.destroy_process_group()
