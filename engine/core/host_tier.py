"""Host memory below the device's cache: swapped-out and evicted blocks, under the same hashes.

The host tier is a second block pool. What moves between the two is a list of copies in a step's plan:

    device   [ b1 ][ b2 ][ b3 ][ b4 ]          copy_out = [(device block, host block), ...]
                |            ^                 copy_in  = [(host block, device block), ...]
       copy_out v            | copy_in
    host     [ h1 ][ h2 ][ h3 ][ h4 ]          a worker runs copy_out, then copy_in, then the forward pass

In that order a device block may save its old content to the host and take new content in the same step. A host block
that a step reads or writes has an owner until the step is over, so it is not reused meanwhile, and it is found by its
hash only after the step that wrote it.

After preemption by swap (PagedAttention, section 4.5) the victim waits like any other request, owns host blocks instead
of device blocks, and starts with a longer hit.

Offloading makes the same copies when the device's prefix cache evicts a block; vLLM makes them when a block is full.
Here both tiers never hold the same blocks, and without memory pressure nothing is copied. The cost is a copy in the
step that needs the room: 5 us for a block of `shop`, hundreds of times less than to compute it (`prep bench swap`).
Sources: vLLM 0.6 core/block_manager.py (swap), vLLM v1/kv_offload/cpu/manager.py (offload).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.core.blocks import Block, BlockPool

CopyPairs = list[tuple[int, int]]


@dataclass(slots=True)
class StepCopies:
    """Copies of one step, and the host blocks that it owns until it is over."""

    copy_out: CopyPairs = field(default_factory=list)
    copy_in: CopyPairs = field(default_factory=list)
    written: deque[tuple[Block, bytes | None]] = field(default_factory=deque)
    """(host block, hash to publish); None for content that only its owner may read."""
    num_offloaded: int = 0
    """Copies out of evicted blocks."""
    read: list[Block] = field(default_factory=list)


class HostTier:
    """Host blocks, who owns them, and the copies of the step that is being planned."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks + 1)  # block 0 of a pool is its null block
        self._writing: dict[bytes, Block] = {}
        """Blocks that an unfinished step writes, by hash: not readable yet, and not to be written twice."""
        self._plan = StepCopies()
        self._in_flight: dict[int, StepCopies] = {}
        """Planned steps that are not over, by number."""

    # -- copies out

    def swap_out(self, blocks: Sequence[Block], hashes: Sequence[bytes] | None) -> list[Block]:
        """Copy the device blocks of a chain, from its start on. Returns the host blocks, now owned by the caller.

        Blocks already on the host are not copied again. A full host returns fewer blocks than given, and the caller
        computes the rest again. Blocks without hashes can be read by the caller alone.
        """
        kept: list[Block] = []
        for index, block in enumerate(blocks):
            host_block = self._keep(block, hashes[index] if hashes is not None else None)
            if host_block is None:
                break
            kept.append(host_block)
        return kept

    def _keep(self, block: Block, block_hash: bytes | None) -> Block | None:
        """Return a host block for a device block's content, owned by the caller; None if the host is full."""
        known = self._find(block_hash)
        if known is not None:
            self.pool.touch(known)
            return known
        if not self.pool.free:
            return None
        (host_block,) = self.pool.take(1)
        self._write(block, host_block, block_hash)
        self._plan.written.append((host_block, block_hash))
        self.pool.touch(host_block)
        return host_block

    def offload(self, block: Block) -> bool:
        """Copy a cached device block that is about to be reused. False if the host has it or is full."""
        if self._find(block.block_hash) is not None or not self.pool.free:
            return False
        (host_block,) = self.pool.take(1)
        self._write(block, host_block, block.block_hash)
        # The device evicts a chain from its tail, and so must the host: the last to come is released first.
        self._plan.written.appendleft((host_block, block.block_hash))
        self._plan.num_offloaded += 1
        return True

    def _write(self, block: Block, host_block: Block, block_hash: bytes | None) -> None:
        self._plan.copy_out.append((block.block_id, host_block.block_id))
        if block_hash is not None:
            self._writing[block_hash] = host_block

    def _find(self, block_hash: bytes | None) -> Block | None:
        if block_hash is None:
            return None
        return self.pool.cached.get(block_hash) or self._writing.get(block_hash)

    # -- copies in

    def hold(self, hit: Sequence[Block]) -> None:
        """Own the host blocks that this step will read, so that they are not reused before."""
        for host_block in hit:
            self.pool.touch(host_block)
        self._plan.read += hit

    def copy_in(self, hit: Sequence[Block], blocks: Iterable[Block]) -> None:
        """Copy held host blocks into device blocks in this step."""
        self._plan.copy_in += [
            (host_block.block_id, block.block_id) for host_block, block in zip(hit, blocks, strict=True)
        ]

    def release(self, host_blocks: Sequence[Block]) -> None:
        """Release the blocks that `swap_out` returned, in the same order. Those with a hash stay in the cache."""
        self.pool.release(host_blocks)

    # -- one step

    @property
    def num_offloaded(self) -> int:
        """Evicted blocks that the step being planned copies out."""
        return self._plan.num_offloaded

    def close_step(self, step: int) -> tuple[CopyPairs, CopyPairs]:
        """Return the copies of the planned step: (copy_out, copy_in)."""
        plan, self._plan = self._plan, StepCopies()
        if plan.written or plan.read:
            self._in_flight[step] = plan
        return plan.copy_out, plan.copy_in

    def end_step(self, step: int) -> None:
        """Publish what the step wrote. An earlier step that never ended has written nothing."""
        while self._in_flight and (first := next(iter(self._in_flight))) <= step:
            plan = self._in_flight.pop(first)
            if first == step:
                for host_block, block_hash in plan.written:
                    if block_hash is not None:
                        self.pool.register(host_block, block_hash)
            self._release_step(plan)

    def _release_step(self, plan: StepCopies) -> None:
        for _, block_hash in plan.written:
            if block_hash is not None:
                del self._writing[block_hash]
        self.pool.release([host_block for host_block, _ in plan.written])
        self.pool.release(plan.read)

    def reset(self) -> bool:
        """Forget all cached content. Refused (False) while a request owns a block."""
        for step in list(self._in_flight):
            self._release_step(self._in_flight.pop(step))
        return self.pool.reset()

    # -- invariants

    def check_integrity(self, owned: Iterable[Block]) -> list[str]:
        """Return what is inconsistent. owned: the blocks of requests, one entry per owner."""
        problems = [f"host: {problem}" for problem in self.pool.check_integrity()]
        owners = [0] * len(self.pool.blocks)
        plans = (self._plan, *self._in_flight.values())
        in_steps = [block for plan in plans for block in (*(block for block, _ in plan.written), *plan.read)]
        for host_block in (*in_steps, *owned):
            owners[host_block.block_id] += 1
        for host_block in self.pool.blocks:
            if host_block.ref_count != owners[host_block.block_id]:
                problems.append(f"host: {host_block} has {owners[host_block.block_id]} owners")
        for block_hash in self._writing.keys() & self.pool.cached.keys():
            problems.append(f"host: {block_hash.hex()[:8]} is being written and can already be read")
        return problems
