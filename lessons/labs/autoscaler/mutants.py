"""Plausible wrong autoscalers, each with the check that must catch it."""

MUTANTS = """
autoscaler thresholds_are_strict: at the threshold is above
-        self.above_since = self._since(self.above_since, now, signal > self.out_above)
+        self.above_since = self._since(self.above_since, now, signal >= self.out_above)
autoscaler thresholds_are_strict: at the threshold is below
-        self.below_since = self._since(self.below_since, now, signal < self.in_below)
+        self.below_since = self._since(self.below_since, now, signal <= self.in_below)
autoscaler a_spike_must_last: one look is enough
-        is_high = self.above_since is not None and now - self.above_since >= self.sustain_out
+        is_high = self.above_since is not None
autoscaler a_spike_must_last: looks are counted, not seconds
-        is_high = self.above_since is not None and now - self.above_since >= self.sustain_out
+        self.looks = getattr(self, "looks", 0) + 1 if self.above_since is not None else 0
+        is_high = self.looks > self.sustain_out / 10
autoscaler a_spike_must_last: more than the time, not at least
-        is_high = self.above_since is not None and now - self.above_since >= self.sustain_out
+        is_high = self.above_since is not None and now - self.above_since > self.sustain_out
autoscaler one_look_in_between_starts_anew: a dip is forgiven
         if not holds:
-            return None
+            return since
         return now if since is None else since
autoscaler one_look_in_between_starts_anew: a look in the band keeps the count
-        self.above_since = self._since(self.above_since, now, signal > self.out_above)
+        if signal > self.out_above or signal < self.in_below:
+            self.above_since = self._since(self.above_since, now, signal > self.out_above)
autoscaler cooldowns_follow_any_change: none after growth
-        if is_low and replicas > self.least and now - self.changed >= self.cooldown_in:
+        if is_low and replicas > self.least:
autoscaler cooldowns_follow_any_change: one cooldown for both
-        if is_low and replicas > self.least and now - self.changed >= self.cooldown_in:
+        if is_low and replicas > self.least and now - self.changed >= self.cooldown_out:
autoscaler cooldowns_follow_any_change: no cooldown between growths
-        if is_high and replicas < self.most and now - self.changed >= self.cooldown_out:
+        if is_high and replicas < self.most:
autoscaler a_cooldown_does_not_stop_the_count: it counts from the end of the cooldown
-        self.above_since = self._since(self.above_since, now, signal > self.out_above)
+        is_open = now - self.changed >= self.cooldown_out
+        self.above_since = self._since(self.above_since, now, signal > self.out_above and is_open)
autoscaler a_change_starts_the_counts_anew: the old spike counts for the next replica
-        self.changed, self.above_since, self.below_since = now, None, None
+        self.changed, self.below_since = now, None
autoscaler the_limits_hold: no maximum
-        if is_high and replicas < self.most and now - self.changed >= self.cooldown_out:
+        if is_high and now - self.changed >= self.cooldown_out:
autoscaler the_limits_hold: shrinks to nothing
-        if is_low and replicas > self.least and now - self.changed >= self.cooldown_in:
+        if is_low and replicas > 0 and now - self.changed >= self.cooldown_in:
autoscaler too_few_replicas_are_replaced_at_once: waits for the cooldown
-        if replicas < self.least:
+        if replicas < self.least and now - self.changed >= self.cooldown_out:
autoscaler too_few_replicas_are_replaced_at_once: a replacement is no change
         if replicas < self.least:
-            return self._change(now, 1)
+            return 1
autoscaler wrong_settings_are_refused: thresholds that cross
-        if not in_below < out_above:
+        if in_below > 2 * out_above:
autoscaler wrong_settings_are_refused: negative times
-        if min(sustain_out, sustain_in, cooldown_out, cooldown_in) < 0:
+        if min(sustain_out, sustain_in) < 0:
autoscaler the_limits_do_not_stop_the_count: at `most` the count begins anew
-        self.above_since = self._since(self.above_since, now, signal > self.out_above)
+        self.above_since = self._since(self.above_since, now, signal > self.out_above and replicas < self.most)
autoscaler the_limits_do_not_stop_the_count: at `least` the count begins anew
-        self.below_since = self._since(self.below_since, now, signal < self.in_below)
+        self.below_since = self._since(self.below_since, now, signal < self.in_below and replicas > self.least)
autoscaler wrong_settings_are_refused: limits that cross
-        if not 1 <= least <= most:
+        if least < 1:
autoscaler a_spike_must_last: a cooldown from the start
-        self.changed = float("-inf")
+        self.changed = 0.0
autoscaler random_looks: a long time between two looks begins the counts anew
+        if now - getattr(self, "last", now) > 20:
+            self.above_since = self.below_since = None
+        self.last = now
         if replicas < self.least:
autoscaler a_fleet_scales_by_it: never fewer than two replicas
-        if is_low and replicas > self.least and now - self.changed >= self.cooldown_in:
+        if is_low and replicas > max(self.least, 2) and now - self.changed >= self.cooldown_in:
"""
