"""The shadow KV with a network: blocks come from elsewhere late, in any order, in part, or not at all.

Both halves of the worst connector that the contract allows. It promises more than exists, takes several steps, and
overwrites the blocks of a running load with garbage. A block that the core reuses too early, or publishes although it
never arrived, is then read as "another prefix's KV". Blocks to be sent are read late, and must still hold what they
held when they were offered.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from engine.core.connector import BlockTransfer, KVConnectorMetadata, KVConnectorOutput
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from tests.core.shadow_kv import ShadowWorker, Simulation, explain, require
from tests.core.workloads import Ask, Digest, Workload, extend_digest, root_digest

GARBAGE = -1
"""No digest of any prefix: what a slot holds while its block is on its way."""
LONGEST_WAY = 9
"""Steps."""


@dataclass(eq=False)
class Running:
    """A transfer on the network."""

    transfer: BlockTransfer
    ends: int
    """Step."""
    num_good: int
    """Blocks that will have come when it ends."""
    content: list[list[Digest]] = field(default_factory=list)
    """Content of a send's blocks when they were offered."""


class FakeNetwork:
    """The scheduler half, and what both halves know: which blocks exist elsewhere."""

    def __init__(self, rng: random.Random, block_size: int) -> None:
        self.rng = rng
        self.block_size = block_size
        self.elsewhere: dict[bytes, list[Digest]] = {}
        self.decided: set[Request] = set()
        self.num_loads = self.num_short_loads = self.num_sends = 0

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
        first = num_computed_tokens // self.block_size
        end = first
        while end < len(request.block_hashes) and request.block_hashes[end] in self.elsewhere:
            end += 1
        lie = random.Random(request.request_id).choice([0, 0, 1, 5])  # the same each time it is asked
        return (end - first + lie) * self.block_size

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        require(request not in self.decided, f"{request.request_id} is decided about twice")
        self.decided.add(request)
        params, size = request.sampling_params, self.block_size
        reads = params.prompt_logprobs is None and not params.skip_reading_prefix_cache
        require(reads or not num_external_tokens, f"{request.request_id} fetches what it must not read")
        most = (request.num_tokens - 1) // size * size  # one token is computed, or there were no logits
        require(num_external_tokens <= most, f"{request.request_id} fetches {num_external_tokens} tokens")

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return (True, {"handle": request.request_id}) if self.rng.random() < 0.6 else (False, None)

    def build_connector_meta(
        self, loads: list[BlockTransfer], saves: list[BlockTransfer]
    ) -> KVConnectorMetadata:
        return KVConnectorMetadata(loads, saves)


class TransferWorker(ShadowWorker):
    """A shadow worker whose cache a network also reads and writes, before and after each forward pass."""

    network: FakeNetwork

    def __init__(self, *shape: Any) -> None:
        super().__init__(*shape)
        self.loads: list[Running] = []
        self.sends: list[Running] = []

    def execute(self, out: SchedulerOutput) -> ModelRunnerOutput:
        self._scribble()
        ended = KVConnectorOutput()
        if self.network.rng.random() < 0.5:  # in the middle of the step
            self._end(out.step, ended)
        result = super().execute(out)
        self._scribble()
        self._end(out.step, ended)
        if ended.finished_recving or ended.finished_sending:
            result.kv_connector_output = ended
        return result

    def _copy(self, out: SchedulerOutput) -> None:
        super()._copy(out)  # first: what a load's block held before may be on its way to the host
        self._begin(out)
        self._scribble()

    def _begin(self, out: SchedulerOutput) -> None:
        rng, metadata = self.network.rng, out.kv_connector_metadata
        for load in metadata.loads:
            held = [block_hash in self.network.elsewhere for block_hash in load.block_hashes]
            num_there = [*held, False].index(False)
            num_good = rng.choice([num_there, num_there, rng.randint(0, num_there), 0])
            self.loads.append(Running(load, out.step + rng.randint(0, LONGEST_WAY), num_good))
            self.network.num_loads += 1
            self.network.num_short_loads += num_good < len(load.block_ids)
        for save in metadata.saves:
            content = [self._content(block_id) for block_id in save.block_ids]
            ends = out.step + rng.randint(0, LONGEST_WAY)
            self.sends.append(Running(save, ends, len(save.block_ids), content))
            self.network.num_sends += 1

    def _scribble(self) -> None:
        for load in self.loads:
            for block_id in load.transfer.block_ids:
                self._fill(block_id, [GARBAGE] * self.block_size)

    def _end(self, step: int, ended: KVConnectorOutput) -> None:
        for load in [load for load in self.loads if load.ends <= step]:
            self.loads.remove(load)
            transfer = load.transfer
            for index in range(load.num_good):
                content = self.network.elsewhere[transfer.block_hashes[index]]
                self._fill(transfer.block_ids[index], content)
            ended.finished_recving[transfer.transfer_id] = load.num_good
        for send in [send for send in self.sends if send.ends <= step]:
            self.sends.remove(send)
            transfer = send.transfer
            for block_id, block_hash, content in zip(
                transfer.block_ids, transfer.block_hashes, send.content, strict=True
            ):
                require(self._content(block_id) == content, "a block changed before it was sent", transfer)
                self.network.elsewhere[block_hash] = content
            ended.finished_sending.append(transfer.transfer_id)

    def _content(self, block_id: int) -> list[Digest]:
        first = block_id * self.block_size
        return [self.cache.get(number, GARBAGE) for number in range(first, first + self.block_size)]

    def _fill(self, block_id: int, content: list[Digest]) -> None:
        for offset, digest in enumerate(content):
            self.cache[block_id * self.block_size + offset] = digest


class TransferSimulation(Simulation):
    """A workload whose engine has a connector."""

    worker_class = TransferWorker
    worker: TransferWorker

    def __init__(self, workload: Workload, factory: Callable[..., Any] = Scheduler) -> None:
        rng = random.Random(workload.seed)
        self.network = FakeNetwork(rng, workload.cache.block_size)
        policy = rng.choice(["recompute", "recompute", "fail"])
        resources = sys.modules[factory.__module__].default_resources  # a mutant's, if the factory is one
        options = {"connector": self.network, "kv_load_failure_policy": policy}
        super().__init__(workload, partial(factory, make_resources=partial(resources, **options)))
        self.worker.network = self.network
        for ask in workload.asks:
            if rng.random() < 0.6:
                self._put_elsewhere(ask, rng.random())

    def _put_elsewhere(self, ask: Ask, share: float) -> None:
        """Another engine has computed a part of this prompt."""
        request, size = ask.make(), self.workload.cache.block_size
        self.scheduler.kv.hasher.extend(request)
        digests = list(prefix_digests(ask))
        for index in range(round(share * len(request.block_hashes))):
            content = digests[index * size : (index + 1) * size]
            self.network.elsewhere[request.block_hashes[index]] = content


def prefix_digests(ask: Ask) -> Iterator[Digest]:
    digest = root_digest(ask.lora_key, ask.cache_salt)
    for token_id in ask.prompt:
        yield (digest := extend_digest(digest, token_id))


def transfer_workload(seed: int) -> Workload:
    """As `Workload.random`, with what a connector needs: prefix caching, and blocks that stay."""
    workload = Workload.random(seed)
    cache = replace(workload.cache, enable_prefix_caching=True, sliding_window=None)
    return replace(workload, cache=cache)


def failure_with_network(workload: Workload, factory: Callable[..., Any] = Scheduler) -> Exception | None:
    try:
        TransferSimulation(workload, factory).run()
    except Exception as error:
        return error
    return None


__all__ = ["TransferSimulation", "explain", "failure_with_network", "transfer_workload"]
