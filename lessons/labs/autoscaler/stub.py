"""Lab autoscaler: decide when a fleet starts or drains a replica.

The seam is `Autoscaler.decide` of engine/sim/autoscaler.py: the simulated fleet calls it at every look, some seconds
apart, with a signal such as "waiting requests per replica". Looks come in order of time, not always equally far apart.

    signal  |        ____            ______
    out at  |-------/----\\----------/------\\-------   above it for `sustain_out`: start a replica
            |      /      \\        /        \\
    in at   |-----/--------\\------/----------\\-----   below it for `sustain_in`: drain one
            +------------------------------------- t
                     |<-- cooldown_out -->|               after any change, so long no growth
                     |<------- cooldown_in ------->|      and so long no shrinking
"""

from __future__ import annotations


class Scaler:
    """Decides by a signal with hysteresis: +1 start a replica, -1 drain one, 0 neither."""

    def __init__(
        self,
        out_above: float,
        in_below: float,
        least: int = 1,
        most: int = 8,
        sustain_out: float = 30.0,
        sustain_in: float = 60.0,
        cooldown_out: float = 120.0,
        cooldown_in: float = 600.0,
    ) -> None:
        """Times in seconds. Raises ValueError unless in_below < out_above, 1 <= least <= most, and times are >= 0."""
        raise NotImplementedError("write Scaler")

    def decide(self, now: float, signal: float, replicas: int) -> int:
        """Return 1, -1 or 0. replicas: those that serve or start.

        1. Fewer than `least` replicas: 1, whatever the signal and the cooldowns.
        2. Grow if the signal was above out_above at every look of the last `sustain_out` seconds, `cooldown_out`
           seconds have passed since the last change, and there are fewer than `most` replicas.
        3. Shrink if it was below in_below at every look of the last `sustain_in` seconds, `cooldown_in` seconds have
           passed since the last change, and there are more than `least`.

        Above and below are strict. The first look above counts the seconds from there: with sustain_out 0 it is enough.
        A change is any answer that is not 0; after it, both counts begin anew. Neither a cooldown nor
        `least` or `most` stops them. Before the first change there is no cooldown.
        """
        raise NotImplementedError("write decide")
