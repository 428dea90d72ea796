"""Messages, bubbles and shares by counting them out."""


def all_reduces(layers: int) -> int:
    """Walk through the layers: attention's output, the MLP's output; the embedding once."""
    return 1 + sum(2 for _ in range(layers))


def pipeline_bytes_per_token(stages: int, hidden: int, value_bytes: int = 2) -> int:
    """Every boundary carries the layer's output and the residual stream."""
    return sum(2 * hidden * value_bytes for _ in range(stages - 1))


def idle_share(stages: int, requests: int) -> float:
    """Decode: a request is in one step at a time. Requests are dealt out one by one; a stage without any waits."""
    return sum(1 for stage in range(stages) if stage >= requests) / stages


def training_bubble(stages: int, microbatches: int) -> float:
    """One batch cut into microbatches: ticks in which a stage waits, over all ticks (GPipe)."""
    ticks = stages + microbatches - 1
    return 1 - microbatches / ticks


def busy_ticks(stages: int, microbatches: int) -> int:
    """Ticks until the last microbatch leaves the last stage: a small simulation."""
    done, tick, queue = 0, 0, [0] * stages
    left = microbatches
    while done < microbatches:
        tick += 1
        done += queue[-1]
        queue = [1 if left else 0, *queue[:-1]]
        left -= queue[0]
    return tick - 1


def layer_shares(layers: int, stages: int) -> list[int]:
    """Deal the layers out one by one; what is left over goes to the last stages but one, from the back."""
    shares = [0] * stages
    for _ in range(layers // stages):
        shares = [share + 1 for share in shares]
    for extra in range(layers - sum(shares)):
        shares[stages - 2 - extra] += 1
    return shares


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    """More ranks than KV heads: heads are copied."""
    return max(1, kv_heads // tp)


def kv_copies(kv_heads: int, tp: int) -> float:
    """Copies of the KV cache on all ranks together."""
    return kv_heads_per_rank(kv_heads, tp) * tp / kv_heads


def dispatch_bytes(tokens: int, top_k: int, hidden: int, ranks: int, value_bytes: int = 2) -> float:
    """All-to-all there and back: each visit leaves its rank unless its expert happens to live there."""
    visits = tokens * top_k
    leaving = visits * (ranks - 1) / ranks
    return 2 * leaving * hidden * value_bytes


def imbalance_of_load(load: list[int], per_rank: int) -> float:
    """Busiest rank over the mean, experts dealt out in order."""
    ranks = [sum(load[start : start + per_rank]) for start in range(0, len(load), per_rank)]
    return max(ranks) * len(ranks) / sum(load)


def imbalance_of_load_with_copy(load: list[int], per_rank: int) -> float:
    """The same when the most visited expert is copied to the idlest rank and each copy serves half."""
    hot = load.index(max(load))
    ranks: list[float] = [sum(load[start : start + per_rank]) for start in range(0, len(load), per_rank)]
    idlest = ranks.index(min(ranks))
    ranks[hot // per_rank] -= load[hot] / 2
    ranks[idlest] += load[hot] / 2
    return max(ranks) * len(ranks) / sum(load)


def copies_of_experts(load: list[int], redundant: int) -> list[int]:
    """Copies per expert when each redundant place goes to the expert with the most visits per copy."""
    copies = [1] * len(load)
    for _ in range(redundant):
        busiest = max(range(len(load)), key=lambda expert: load[expert] / copies[expert])
        copies[busiest] += 1
    return copies


def copies_of_hottest(load: list[int], redundant: int) -> int:
    return copies_of_experts(load, redundant)[load.index(max(load))]


def busiest_copy(load: list[int], redundant: int) -> float:
    """Visits of the copy that gets the most."""
    return max(w / n for w, n in zip(load, copies_of_experts(load, redundant), strict=True))
