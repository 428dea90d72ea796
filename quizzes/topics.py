"""Topics, roles, stages and kinds of questions. Folders and ids use these names."""

from prep_common.names import unknown_name

TOPICS = {
    "memory": "KV cache bytes, paging, block tables, allocators, fragmentation",
    "prefix_cache": "block hashes, hits, eviction, isolation, sharing, tiers, routing for hits",
    "batching": "static, continuous, ragged and padded batches, token budgets",
    "scheduling": "admission, policies, chunked prefill, fairness, queues",
    "preemption": "victims, recompute, swap, running out of memory",
    "lifecycle": "a request from its prompt to its last byte: events, stops, aborts, errors",
    "attention": "paged attention, online softmax, layouts, masks, windows",
    "performance": "rooflines, prefill and decode, batch scaling, profiles, utilisation",
    "sampling": "temperature, filters, penalties, seeds, n, best_of, beams",
    "structured_output": "grammars, masks, tool calls",
    "speculation": "drafts, acceptance, verification, when it pays",
    "quantization": "weights, activations, KV cache, calibration, gates",
    "lora": "adapters, slots, exactness, rollout",
    "parallelism": "tensor, pipeline, data, expert; collectives and links",
    "disaggregation": "prefill and decode apart, KV transfer",
    "capacity": "sizing, concurrency, latency budgets, cost",
    "operations": "metrics, alerts, incidents, autoscaling, rollout, cold starts",
    "landscape": "engines, papers, versions, judgement, questions to ask back",
    "code_review": "programs from interview guides: what they do, what breaks, how to repair them",
}

ROLES = {
    "inference": "inference engineer: engine, scheduler, cache, decoding",
    "kernel": "kernel engineer: attention, GEMM, quantisation, rooflines",
    "platform": "ML platform: models, adapters, APIs, capacity, cost",
    "sre": "SRE: latency, incidents, scaling, rollouts",
    "applied": "applied or staff engineer: products on top, choices across teams",
}

STAGES = {
    "screen": "phone screen: explain it in two minutes",
    "technical": "technical screen: apply it to numbers",
    "deep_dive": "domain deep dive: mechanisms and trade-offs",
    "design": "system design",
    "coding": "read, repair or write code",
    "incident": "debug a production system",
    "manager": "judgement and history; your questions to them",
}

KINDS = {
    "predict": "predict what an experiment on the engine will count",
    "numeric": "calculate a number",
    "choice": "choose one option",
    "multi": "choose all options that hold",
    "order": "put in order",
    "debug": "find the fault",
    "code": "repair a program until its checks pass",
    "free": "explain in prose; probes decide",
    "design": "design under constraints; probes decide",
}


class UnknownName(ValueError):
    """Raised for an unknown topic, role, stage or kind; the message lists the known ones."""


def resolve(what: str, value: str, known: dict[str, str]) -> str:
    """Return the key of `known` that `value` spells, ignoring case and hyphens. Raises UnknownName."""
    name = value.strip().lower().replace("-", "_")
    if name in known:
        return name
    raise UnknownName(unknown_name(f"unknown {what}", value, known, f"known: {', '.join(known)}"))
