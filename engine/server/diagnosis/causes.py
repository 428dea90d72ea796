"""Causes that a diagnosis can name: the words that incident drills use, an explanation and a next step for each."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """Reason why a server is slow or wrong."""

    ABORT_LEAK = "abort_leak"
    SEQS_TOO_HIGH = "seqs_too_high"
    REQUEST_NEVER_FITS = "request_never_fits"
    TIMESTAMP_AT_HEAD = "timestamp_at_head"
    CHUNKING_OFF = "chunking_off"
    CHUNK_TOO_SMALL = "chunk_too_small"
    WRONG_STOP_ID = "wrong_stop_id"
    SLOW_EVENT_LOOP = "slow_event_loop"
    STRAGGLER = "straggler"
    RETRY_STORM = "retry_storm"
    ROUTER_BLIND = "router_blind"
    DRAFT_MISMATCH = "draft_mismatch"
    NOISY_NEIGHBOUR = "noisy_neighbour"
    OVERLOAD = "overload"
    LORA_STORM = "lora_storm"
    KV_TOO_SMALL = "kv_too_small"
    SLOW_TOKENIZER = "slow_tokenizer"
    COLD_START = "cold_start"
    MODEL_LEN_TOO_SHORT = "model_len_too_short"
    MISSING_SALT = "missing_salt"
    UNBALANCED_RANK = "unbalanced_rank"
    CLOCK_SKEW = "clock_skew"
    NOISY_TENANT = "noisy_tenant"
    TEMPLATE_CHANGED = "template_changed"
    GATEWAY_RETRY_STORM = "gateway_retry_storm"
    BAD_CANARY = "bad_canary"
    SEQS_TOO_LOW = "seqs_too_low"
    CACHING_OFF = "caching_off"
    EXPORT_IN_STEP = "export_in_step"
    QUEUE_LIMIT = "queue_limit"
    TIMEOUT_TOO_SHORT = "timeout_too_short"


class Told(NamedTuple):
    """Meaning of a cause, and the next step in vLLM's words."""

    meaning: str
    next_step: str


ABOUT: dict[Cause, Told] = {
    Cause.ABORT_LEAK: Told(
        "Requests that ended keep their KV blocks.",
        "Find the path that ends a request without freeing it (usually abort), and upgrade or patch it. "
        "A restart only buys time.",
    ),
    Cause.SEQS_TOO_HIGH: Told(
        "The batch may hold more requests than the KV pool; the engine preempts and recomputes.",
        "Lower --max-num-seqs to the requests that fit, or add KV blocks (--gpu-memory-utilization).",
    ),
    Cause.REQUEST_NEVER_FITS: Told(
        "The first request of the queue needs more KV blocks than the pool has, and nothing passes it.",
        "Abort it and lower --max-model-len, so that such requests get status 400; or add KV blocks.",
    ),
    Cause.TIMESTAMP_AT_HEAD: Told(
        "A text that changes with each request stands before the stable part of the prompts.",
        "Move time stamps, ids and names behind the stable part. prep cache lint LOG shows the place.",
    ),
    Cause.CHUNKING_OFF: Told(
        "A whole long prompt is computed in one step, and all running requests wait for it.",
        "Use --enable-chunked-prefill with a lower --max-num-batched-tokens.",
    ),
    Cause.CHUNK_TOO_SMALL: Told(
        "The token budget of a step is so small that a prompt takes many steps.",
        "Raise --max-num-batched-tokens (and --long-prefill-token-threshold).",
    ),
    Cause.WRONG_STOP_ID: Told(
        "Answers do not end where the model ends them; they run to max_tokens.",
        "Compare eos_token_id of generation_config.json and the chat template with the tokenizer.",
    ),
    Cause.SLOW_EVENT_LOOP: Told(
        "The process that speaks HTTP is busy; the engine is not.",
        "Move the slow work (detokenising, logging, JSON) off the event loop, or raise --api-server-count.",
    ),
    Cause.STRAGGLER: Told(
        "One rank is slow, and every step waits for the slowest rank.",
        "Compare the ranks' step times and clocks (nvidia-smi, NCCL tests), and replace the slow one.",
    ),
    Cause.RETRY_STORM: Told(
        "Clients time out, abort and send the same request again, so the load feeds itself.",
        "Back off exponentially with a retry budget, and refuse early: a bounded queue with status 429 or 503.",
    ),
    Cause.ROUTER_BLIND: Told(
        "The router sends requests with one prefix to all replicas; each computes it anew.",
        "Route by prefix: policy prefix-affinity or consistent-hash.",
    ),
    Cause.DRAFT_MISMATCH: Told(
        "The target model rejects most draft tokens; they cost time and gain nothing.",
        "Use a draft that fits the traffic, or fewer num_speculative_tokens, or none (--speculative-config).",
    ),
    Cause.NOISY_NEIGHBOUR: Told(
        "Another program takes processor time at irregular times; equal steps take unequal time.",
        "Isolate the server: CPU sets and limits, and no batch jobs on the same machine.",
    ),
    Cause.OVERLOAD: Told(
        "Requests arrive faster than the server completes them.",
        "Shed load (a bounded queue), or add a replica. No setting of this server removes the queue.",
    ),
    Cause.LORA_STORM: Told(
        "Requests for more adapters than there are slots; adapters are swapped all the time.",
        "Raise --max-loras (and --max-cpu-loras), or route by adapter (lora-affinity).",
    ),
    Cause.KV_TOO_SMALL: Told(
        "The KV pool holds only a few requests of this traffic, so the engine preempts or queues.",
        "Add KV blocks: raise --gpu-memory-utilization or --kv-cache-memory-bytes, or use --kv-cache-dtype fp8.",
    ),
    Cause.SLOW_TOKENIZER: Told(
        "Requests wait for the tokenizer before the engine sees them.",
        "Send token ids, limit the size of bodies, or raise --api-server-count.",
    ),
    Cause.COLD_START: Told(
        "The first requests after a start pay for compilation, captures and page faults.",
        "Warm up before readiness: send requests of all sizes before the load balancer sees the server.",
    ),
    Cause.MODEL_LEN_TOO_SHORT: Told(
        "The context limit or rope settings do not fit the model or its traffic.",
        "Compare --max-model-len and --hf-overrides (rope) with the model's config.json and the prompts.",
    ),
    Cause.MISSING_SALT: Told(
        "A cached prefix of one user answers another: their requests share a cache without a salt.",
        "Send cache_salt per tenant; reset the prefix cache.",
    ),
    Cause.UNBALANCED_RANK: Told(
        "One rank has more work than the others, so its share grows with the tokens of a step.",
        "Distribute heads, layers or experts evenly (--enable-eplb for experts).",
    ),
    Cause.CLOCK_SKEW: Told(
        "Clocks disagree, so times in the metrics are wrong; the server may be healthy.",
        "Synchronise clocks (NTP) and compute durations from a monotonic clock.",
    ),
    Cause.NOISY_TENANT: Told(
        "One tenant sends most of the work, and all others wait behind it.",
        "Limit rate and tokens per tenant at the gateway, or use --scheduling-policy priority.",
    ),
    Cause.TEMPLATE_CHANGED: Told(
        "A new version of the prompt template differs early, so old prefixes no longer hit.",
        "Revert the template, or move what changed behind the stable part. prep cache lint LOG shows the place.",
    ),
    Cause.GATEWAY_RETRY_STORM: Told(
        "The gateway sends requests again and multiplies the load on slow replicas.",
        "Lower retries.most and retries.budget, raise time-outs, and let the breaker open earlier.",
    ),
    Cause.BAD_CANARY: Told(
        "The new version fails or is slower than the old one beside it.",
        "Roll back: prep gateway canary URL 0.",
    ),
    Cause.SEQS_TOO_LOW: Told(
        "The batch may hold so few requests that others wait beside a KV cache with room.",
        "Raise --max-num-seqs to the requests that the KV pool holds.",
    ),
    Cause.CACHING_OFF: Told(
        "The prefix cache is switched off, although prompts share their beginnings.",
        "Use --enable-prefix-caching.",
    ),
    Cause.EXPORT_IN_STEP: Told(
        "Something other than the model takes the same time in every step, such as logging or an exporter.",
        "Profile a step (prep trace, py-spy), and move the work out of the engine's loop.",
    ),
    Cause.QUEUE_LIMIT: Told(
        "The limit on waiting requests refuses ordinary bursts, although the queue is short.",
        "Raise the limit on queued requests (here --max-num-queued-reqs).",
    ),
    Cause.TIMEOUT_TOO_SHORT: Told(
        "The time-out of a request is below the time that ordinary answers take.",
        "Raise the time-out (here --request-timeout), or limit max_tokens.",
    ),
}  # fmt: skip
