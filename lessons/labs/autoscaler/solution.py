"""Solution of lab autoscaler. The docstrings of the stub state the contract."""

from __future__ import annotations


class Scaler:
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
