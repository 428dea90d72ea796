"""The meanings of a run's counters, and their names in vLLM's Prometheus metrics.

The meanings are the docstrings of `StepStats` in engine/core/stats.py, read from its source.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from typing import NamedTuple

from engine.core import stats

VLLM_NAMES = {
    "num_preempted": "vllm:num_preemptions",
    "num_drafts": "vllm:spec_decode_num_drafts",
    "num_draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "num_accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "external_prefix_cache_queries": "vllm:external_prefix_cache_queries",
    "external_prefix_cache_hits": "vllm:external_prefix_cache_hits",
    "encoder_cache_queries": "vllm:mm_cache_queries (of another cache: the processor's)",
    "encoder_cache_hits": "vllm:mm_cache_hits (of another cache: the processor's)",
}
"""vLLM's counters have the same meaning unless noted; prometheus_client adds `_total`."""


class CounterRow(NamedTuple):
    counter: str
    total: int
    meaning: str
    vllm: str
    """Empty: vLLM has no such metric."""


def counter_rows(totals: dict[str, int]) -> list[CounterRow]:
    return [
        CounterRow(name, total, meanings().get(name, ""), VLLM_NAMES.get(name, ""))
        for name, total in totals.items()
    ]


@cache
def meanings() -> dict[str, str]:
    """Counter -> the docstring below its field; a docstring below several fields applies to all of them."""
    body = ast.parse(inspect.getsource(stats.StepStats)).body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    undescribed: list[str] = []
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            undescribed.append(statement.target.id)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and undescribed:
            text = " ".join(str(statement.value.value).split())
            found[undescribed[-1]] = text
            undescribed = []
    return found
