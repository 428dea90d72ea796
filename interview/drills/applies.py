"""Figures that can exist in a drill: none of replicas with one server, no acceptance without drafts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from interview.drills.drill import Load, Stage, find_drill
from interview.drills.figures import FIGURES

NOTHING = {
    "speculation": "nothing: the server has no drafts and no LoRA adapters",
    "replicas": "nothing to compare: there is one server",
    "quality": "nothing: no request has a known answer",
}
"""Look -> its line if none of its figures can exist."""


def _has_replicas(stage: Stage, load: Load) -> bool:
    return stage.replicas > 1


def _has_drafts(stage: Stage, load: Load) -> bool:
    return bool(stage.set.get("speculative-config"))


def _has_adapters(stage: Stage, load: Load) -> bool:
    return bool(stage.set.get("enable-lora"))


def _has_prefix_cache(stage: Stage, load: Load) -> bool:
    return stage.set.get("enable-prefix-caching") is not False


def _has_questions(stage: Stage, load: Load) -> bool:
    return any(group.questions for group in load.groups.values())


def _has_groups(stage: Stage, load: Load) -> bool:
    return len(load.groups) > 1


def _has_ranks(stage: Stage, load: Load) -> bool:
    return int(str(stage.set.get("tensor-parallel-size") or 1)) > 1


NEEDS: dict[str, Callable[[Stage, Load], bool]] = {
    "replica_imbalance": _has_replicas,
    "replica_step_ratio": _has_replicas,
    "replica_spread": _has_replicas,
    "acceptance": _has_drafts,
    "lora_loads": _has_adapters,
    "hit_rate": _has_prefix_cache,
    "prefix_queries": _has_prefix_cache,
    "foreign_hits": lambda stage, load: _has_groups(stage, load) and _has_prefix_cache(stage, load),
    "right_short": _has_questions,
    "right_long": _has_questions,
    "tenant_share": _has_groups,
    "rank_gap_ms": _has_ranks,
}
"""Figure -> whether a run can have it. All others exist in every run."""


@cache
def figures_of_drill(drill_id: str) -> frozenset[str]:
    """Return the figures that the healthy or the faulty run can have."""
    drill = find_drill(drill_id)
    stages = [drill.changed(), drill.changed(drill.fault)]
    return frozenset(
        name for name in FIGURES if name not in NEEDS or any(NEEDS[name](*stage) for stage in stages)
    )
