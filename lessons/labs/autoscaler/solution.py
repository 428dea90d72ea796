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
        if not in_below < out_above:
            raise ValueError(f"in_below {in_below:g} must be less than out_above {out_above:g}")
        if not 1 <= least <= most:
            raise ValueError(f"1 <= least <= most, got {least} and {most}")
        if min(sustain_out, sustain_in, cooldown_out, cooldown_in) < 0:
            raise ValueError("times cannot be negative")
        self.out_above, self.in_below, self.least, self.most = out_above, in_below, least, most
        self.sustain_out, self.sustain_in = sustain_out, sustain_in
        self.cooldown_out, self.cooldown_in = cooldown_out, cooldown_in
        self.changed = float("-inf")
        self.above_since: float | None = None
        self.below_since: float | None = None

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
        if replicas < self.least:
            return self._change(now, 1)
        self.above_since = self._since(self.above_since, now, signal > self.out_above)
        self.below_since = self._since(self.below_since, now, signal < self.in_below)
        is_high = self.above_since is not None and now - self.above_since >= self.sustain_out
        is_low = self.below_since is not None and now - self.below_since >= self.sustain_in
        if is_high and replicas < self.most and now - self.changed >= self.cooldown_out:
            return self._change(now, 1)
        if is_low and replicas > self.least and now - self.changed >= self.cooldown_in:
            return self._change(now, -1)
        return 0

    def _since(self, since: float | None, now: float, holds: bool) -> float | None:
        if not holds:
            return None
        return now if since is None else since

    def _change(self, now: float, by: int) -> int:
        self.changed, self.above_since, self.below_since = now, None, None
        return by
