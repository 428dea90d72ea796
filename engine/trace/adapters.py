"""The LoRA adapters of a recorded run: who used the slots in a step. Read from the requests, without a replay."""

from __future__ import annotations

from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.records import StepRecord
from prep_common.text import join_and


def adapter_of(request: RequestHistory) -> str:
    """Return the name of the request's adapter; "" for the base model."""
    return _name(_key(request))


def slot_users(reader: Trace, record: StepRecord) -> dict[str, list[str]]:
    """Return adapter -> requests that used its slot while the step was planned, most important first.

    An adapter is named by its key, as in the scheduler: name, path and load counter.
    """
    before = reader.state_at(record.step - 1).running if record.step else []
    running = [name for name in before if name not in record.preempted]
    by_adapter: dict[str, list[str]] = {}
    for name in dict.fromkeys([*running, *(row.request_id for row in record.rows)]):
        request = reader.find(name, record.step)
        if key := _key(request):
            by_adapter.setdefault(key, []).append(name)
    return by_adapter


def why_no_slot(reader: Trace, request: RequestHistory, record: StepRecord) -> str:
    """Say which requests hold the slots that a waiting request needs; "" if the trace does not tell."""
    users, own = slot_users(reader, record), _key(request)
    if not users or not own:
        return ""
    if own in users:
        return (
            f"the slot of its adapter {_name(own)}, which {join_and(users[own])} {_verb(users[own])}, is closed: a "
            "request that has waited for longer gets it next"
        )
    slots = "the only slot is" if len(users) == 1 else f"all {len(users)} slots are"
    held = "; ".join(f"{join_and(names)} {_verb(names)} {_name(key)}" for key, names in users.items())
    return f"its adapter {_name(own)} is not on the device, and {slots} in use: {held}"


def _key(request: RequestHistory) -> str:
    return str(request.record.get("lora") or "")


def _name(key: str) -> str:
    return key.partition("|")[0]


def _verb(names: list[str]) -> str:
    return "uses" if len(names) == 1 else "use"
