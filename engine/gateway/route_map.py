"""Read a gateway's decisions as a route log, for the picture of which request went to which backend and why.

The gateway counts the unfinished requests of its backends and knows nothing of their KV cache, so the log has no levels
of it, and requests that run and that wait are one number.
"""

from __future__ import annotations

import json
from typing import Any

from engine.config import ConfigError
from engine.sim.route_log import Choice, Kind, RouteLog, Sample, Seen


def routes_of_decisions(text: str) -> tuple[RouteLog, int]:
    """Return the log of `prep gateway explain URL --json`, and the number of decisions without a backend.

    Raises ConfigError if the text has another form, or no decision with a backend.
    """
    try:
        decisions: list[dict[str, Any]] = sorted(
            json.loads(text), key=lambda decision: float(decision["when"])
        )
        names = list(dict.fromkeys(str(seen["name"]) for decision in decisions for seen in decision["seen"]))
        chosen = [decision for decision in decisions if decision["backend"] is not None]
        if not chosen:
            raise ConfigError(
                "the file has no decision with a backend; send requests through the gateway first"
            )
        began = float(chosen[0]["when"])
        units = {str(seen["unit"]) for decision in chosen for seen in decision["seen"]}
        choices = [_choice(decision, names, began) for decision in chosen]
        samples = [_sample(decision, names, began) for decision in chosen]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"not the output of prep gateway explain URL --json ({type(error).__name__}: {str(error)[:120]})"
        ) from None
    unit = units.pop() if len(units) == 1 else "tokens or chunks"
    policies = dict.fromkeys(str(decision["policy"]) for decision in chosen)
    return RouteLog(", ".join(policies), 0.0, choices, samples, unit, names), len(decisions) - len(chosen)


def _choice(decision: dict[str, Any], names: list[str], began: float) -> Choice:
    seen = [
        Seen(names.index(backend["name"]), int(backend["load"]), int(backend["hit"]))
        for backend in decision["seen"]
        if not backend["excluded"]
    ]
    index = names.index(decision["backend"])
    kind = kind_of(str(decision["policy"]), str(decision["reason"]))
    when = round(float(decision["when"]) - began, 6)
    return Choice(when, str(decision["request_id"]), -1, 0, index, kind, str(decision["reason"]), seen)


def _sample(decision: dict[str, Any], names: list[str], began: float) -> Sample:
    loads = {backend["name"]: int(backend["load"]) for backend in decision["seen"]}
    running = [loads.get(name, 0) for name in names]
    return Sample(round(float(decision["when"]) - began, 6), running, [0] * len(names), [])


def kind_of(policy: str, reason: str) -> Kind:
    """Return the kind of a reason that `Route` gives."""
    if reason.startswith("the only one"):
        return "only"
    if policy == "prefix-affinity":
        return "load" if reason.startswith("no backend") else "prefix"
    if policy == "lora-affinity":
        return "adapter" if "is loaded there" in reason else "load"
    kinds: dict[str, Kind] = {"round-robin": "turn", "consistent-hash": "ring", "bounded-load": "ring"}
    return kinds.get(policy, "load")
