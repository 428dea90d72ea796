"""Latency between regions, and capacity that survives the loss of some.

    RTT >= 2 x distance / (c / 1.468)          light in fibre; real routes are longer, about 1.5 times
    TTFT of a user = RTT + TTFT of the engine  on an open connection; TCP and TLS 1.3 cost two RTTs more
    capacity with k of n domains down          the other n - k hold the peak: n / (n - k) times as many replicas

Failures are correlated: a share `common` of a domain's outages (a deployment, DNS, one provider) takes all domains down
at once, so more domains do not get below it (beta-factor model of common-cause failures, IEC 61508-6, annex D).
"""

from __future__ import annotations

import math
from math import comb

LIGHT_KM_PER_S = 299_792.458
FIBRE_INDEX = 1.468
DETOUR = 1.5
"""RTT of a real route over that of light in fibre along the great circle: cables, and routers; an assumption."""
HANDSHAKES = 2
"""RTTs before the request on a new connection: TCP, TLS 1.3."""


def light_rtt(km: float) -> float:
    """Return the seconds of light in fibre, there and back."""
    return 2 * km / (LIGHT_KM_PER_S / FIBRE_INDEX)


def spread(needed: int, domains: int, down: int) -> int:
    """Return the replicas, equal in all domains, of which `needed` remain when `down` domains fail."""
    return domains * math.ceil(needed / (domains - down))


def overload_share(domains: int, down: int, unavailability: float, common: float) -> float:
    """Return the share of the time in which more than `down` of the domains are down."""
    together, alone = common * unavailability, (1 - common) * unavailability
    fewer = sum(
        comb(domains, count) * alone**count * (1 - alone) ** (domains - count) for count in range(down + 1)
    )
    return together + (1 - together) * max(0.0, 1 - fewer)
