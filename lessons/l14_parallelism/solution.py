"""Reference solutions of lesson 14."""

# ruff: noqa: E402, F811

# exercise 14.1
from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import linear, silu


def column_shard(weight: Tensor, rank: int, size: int) -> Tensor:
    if weight.shape[0] % size:
        raise ValueError(f"{weight.shape[0]} outputs do not split into {size} equal parts")
    return weight.chunk(size, dim=0)[rank]


def row_shard(weight: Tensor, rank: int, size: int) -> Tensor:
    if weight.shape[1] % size:
        raise ValueError(f"{weight.shape[1]} inputs do not split into {size} equal parts")
    return weight.chunk(size, dim=1)[rank]


def parallel_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, all_reduce: Callable[[Tensor], Tensor]
) -> Tensor:
    return all_reduce(linear(silu(linear(x, gate)) * linear(x, up), down))


# exercise 14.2
import math
from collections.abc import Mapping, Sequence, Set


def route(
    block_hashes: Sequence[bytes],
    loads: Sequence[int],
    holders: Mapping[bytes, Set[int]],
    max_imbalance: float,
) -> int:
    limit = math.ceil(max_imbalance * (sum(loads) + 1) / len(loads))
    for block_hash in reversed(block_hashes):
        with_room = [replica for replica in holders.get(block_hash, ()) if loads[replica] < limit]
        if with_room:
            return min(with_room, key=lambda replica: (loads[replica], replica))
    return min(range(len(loads)), key=lambda replica: (loads[replica], replica))


# exercise 14.3
def transfer_seconds(num_tokens: int, kv_bytes_per_token: int, bytes_per_s: float, latency_s: float) -> float:
    return latency_s + num_tokens * kv_bytes_per_token / bytes_per_s


def exposed_seconds(prefill_s: float, transfer_s: float, num_layers: int, layer_by_layer: bool) -> float:
    if not layer_by_layer:
        return transfer_s
    compute, send = prefill_s / num_layers, transfer_s / num_layers
    return send if send <= compute else send + (num_layers - 1) * (send - compute)
