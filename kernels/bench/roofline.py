"""Least bytes and FLOPs of an operation, from its arguments: the roofline model (Williams et al. 2009).

    limit = max( bytes / bandwidth,  FLOPs / FLOP rate )          share = limit / measured time

Bytes: every input that has to be looked at once, every output once, as if caches were perfect within a call and
empty before it. FLOPs: those of matrix products, 2 for a multiplication with an addition; whatever is elementwise hides
behind the memory. The entry of an operation holds its formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels.bench.limits import Limits
from kernels.operation import Work
from kernels.operations import OPERATIONS

READ_MOSTLY = 8
"""From this many bytes read per byte written the read bandwidth is the limit, otherwise the copy bandwidth."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The shortest time that this machine allows, and what sets it."""

    seconds: float
    bound: str
    """memory, compute or link"""


def work(op: str, *args: Any, **kwargs: Any) -> Work:
    """Return the least bytes and FLOPs of a call."""
    return OPERATIONS[op].part("work")(*args, **kwargs)


def limit(of: Work, limits: Limits) -> Limit:
    """Return the least time of a call on a machine with these limits."""
    if of.over_link and limits.link_bandwidth:
        return Limit(of.read / limits.link_bandwidth, "link")
    bandwidth = limits.read_bandwidth if of.read >= READ_MOSTLY * of.written else limits.copy_bandwidth
    memory = of.bytes / bandwidth
    compute = of.flops / limits.flops.get(of.rate, limits.flops["float32"])
    return Limit(compute, "compute") if compute > memory else Limit(memory, "memory")
