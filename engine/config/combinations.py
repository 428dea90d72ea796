"""The one table of settings that exclude each other, checked wherever it becomes known which ones are in use."""

from __future__ import annotations

from typing import Any

from engine.config.settings import ConfigError

EXCLUSIONS = {
    "data_parallel": {
        "debug_port": "debug_port looks into one engine, and data_parallel_size > 1 starts several; set only "
        "one of them",
        "kv_events": "kv_events_config is the feed of one engine and data_parallel_size starts several; set it to 1 "
        "and start each engine with its own feed",
        "kv_connector": "kv_transfer_config names one engine and data_parallel_size starts several; set it to 1 and "
        "start an engine for each role",
    },
    "pipeline_parallel": {
        "images": "image embeddings are inserted where token embeddings are computed, and pipeline_parallel_size > 1 "
        "splits the model; leave limit_mm_per_prompt or pipeline_parallel_size at its default"
    },
    "several_workers": {
        "speculative": "speculative_config drafts and verifies on one worker; leave it out, or leave "
        "tensor_parallel_size and pipeline_parallel_size at 1 (data_parallel_size works with drafts)",
        "lora": "enable_lora works with one worker per engine: with tensor_parallel_size or pipeline_parallel_size "
        "above 1 no worker has the whole matrices that an adapter changes; set both to 1",
        "quantized": "quantised weights are loaded whole, ranks cannot share them; leave tensor_parallel_size and "
        "pipeline_parallel_size at 1, or run the float checkpoint (any data_parallel_size works)",
        "kv_connector": "kv_transfer_config works with one worker: with tensor_parallel_size or pipeline_parallel_size "
        "above 1 no worker has a whole block; set both to 1",
    },
    "remote_workers": {
        "kv_connector": "kv_transfer_config needs the worker in the engine's own process; leave "
        "distributed_executor_backend={remote_workers!r} out"
    },
    "no_prefix_caching": {
        "kv_events": "kv_events_config needs enable_prefix_caching=True: without it there are no events to publish",
        "kv_connector": "kv_transfer_config needs enable_prefix_caching=True: blocks are found by their hash, and "
        "blocks that arrive are prefix hits",
        "offload": "offloading keeps cached prefixes for later requests, and enable_prefix_caching=False allows none; "
        "enable prefix caching, or leave kv_offloading_size out (preemption_mode='swap' needs neither)",
    },
    "kv_connector": {
        "kv_events": "kv_events_config does not work with a KV connector or a disk tier: the blocks they bring arrive "
        "by hash, without the tokens that an event needs; use one of the two"
    },
    "kv_transfer": {
        "disk_tier": "kv_offloading_backend={disk_tier!r} is a KV connector, and kv_transfer_config names another one; "
        "set only one of them"
    },
    "no_swap_space": {
        "swap": "preemption_mode='swap' keeps blocks in host memory and swap_space=0 allows none; give swap_space in "
        "GiB, leave it out for the default (4 GiB or a quarter of the free memory), or use 'recompute'"
    },
    "sliding_window": {
        "host_blocks": "host tiers keep whole prefixes, and with a sliding window blocks behind it are freed; leave "
        "sliding_window None to use them"
    },
    "long_prefill_token_threshold": {
        "whole_prompts": "long_prefill_token_threshold cuts prompts into chunks and enable_chunked_prefill=False "
        "forbids chunks; set only one of them"
    },
}
"""Feature -> features that do not work with it -> why not, and what to do instead. `{feature}` in a message stands for
the value that `check_combinations` was given."""


def check_combinations(**features: Any) -> None:
    """Raise ConfigError for the first exclusion whose features are both in use: given, with a true value."""
    for one, others in EXCLUSIONS.items():
        for other, message in others.items():
            if features.get(one) and features.get(other):
                raise ConfigError(message.format(**features))
