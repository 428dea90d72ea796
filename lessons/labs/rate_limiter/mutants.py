"""Plausible wrong limiters, each with the check that must catch it."""

MUTANTS = """
rate-limiter a_burst_then_the_rate: starts empty
-        when, levels = self.tenants.get(tenant, (now, [float(burst) for burst in self.bursts]))
+        when, levels = self.tenants.get(tenant, (now, [0.0, 0.0]))
rate-limiter a_burst_then_the_rate: a pause is saved without limit
-            levels[index] = min(burst, levels[index] + passed * rate)
+            levels[index] = levels[index] + passed * rate
rate-limiter a_burst_then_the_rate: a fixed window that refills at once
-            levels[index] = min(burst, levels[index] + passed * rate)
+            levels[index] = burst if passed * rate >= 1 else levels[index]
rate-limiter both_buckets_must_hold_enough: only requests count
-        wanted = (1, tokens)
+        wanted = (1, 0)
rate-limiter both_buckets_must_hold_enough: only tokens count
-        wanted = (1, tokens)
+        wanted = (0, tokens)
rate-limiter a_refused_request_takes_nothing: the other bucket is charged
         if max(waits) > 0:
+            levels[0] -= 1
             return max(waits)
rate-limiter the_wait_is_exact: the shorter of the two
         if max(waits) > 0:
-            return max(waits)
+            return min(wait for wait in waits if wait > 0)
rate-limiter the_wait_is_exact: the sum of both
         if max(waits) > 0:
-            return max(waits)
+            return sum(waits)
rate-limiter the_wait_is_exact: one second, always
         if max(waits) > 0:
-            return max(waits)
+            return 1.0
rate-limiter what_never_fits_waits_for_ever: a wait that is never over
-        if tokens > self.bursts[1]:
+        if tokens > 10 * self.bursts[1]:
             return math.inf
rate-limiter tenants_do_not_share: one bucket for all
-        levels = self._refill(now, tenant)
+        levels = self._refill(now, "")
         wanted = (1, tokens)
rate-limiter what_was_not_used_comes_back: nothing comes back
-            levels[1] = min(self.bursts[1], levels[1] + reserved - used)
+            levels[1] = min(self.bursts[1], levels[1])
rate-limiter what_was_not_used_comes_back: an overrun is forgiven
-            levels[1] = min(self.bursts[1], levels[1] + reserved - used)
+            levels[1] = min(self.bursts[1], levels[1] + max(0, reserved - used))
rate-limiter what_was_not_used_comes_back: an unknown tenant is kept
-        if tenant in self.tenants:
+        if tenant is not None:
rate-limiter a_clock_that_steps_back: time is lost
-        passed = max(0.0, now - when)
+        passed = now - when
rate-limiter a_clock_that_steps_back: time is counted twice
-        self.tenants[tenant] = max(when, now), levels
+        self.tenants[tenant] = now, levels
rate-limiter full_buckets_are_forgotten: those that were full once
-            if self._refill(now, tenant) == list(self.bursts):
+            if self._refill(now, tenant)[0] == self.bursts[0]:
rate-limiter full_buckets_are_forgotten: nothing is
-            if self._refill(now, tenant) == list(self.bursts):
+            if tenant is None:
rate-limiter wrong_settings_are_refused: a rate of 0
-        if not (requests_per_s > 0 and tokens_per_s > 0) or min(request_burst, token_burst) < 1:
+        if min(request_burst, token_burst) < 1:
rate-limiter what_never_fits_leaves_no_trace: a tenant whose request never fits is kept
+        levels = self._refill(now, tenant)
         if tokens > self.bursts[1]:
             return math.inf
-        levels = self._refill(now, tenant)
rate-limiter wrong_settings_are_refused: a burst of 0
-        if not (requests_per_s > 0 and tokens_per_s > 0) or min(request_burst, token_burst) < 1:
+        if not (requests_per_s > 0 and tokens_per_s > 0):
rate-limiter random_traffic: an answer that used nothing gets no refund
-            levels[1] = min(self.bursts[1], levels[1] + reserved - used)
+            levels[1] = min(self.bursts[1], levels[1] + (reserved - used if used else 0))
rate-limiter the_gateway_answers_by_it: no client waits for more than 2 s
         if max(waits) > 0:
-            return max(waits)
+            return min(2.0, max(waits))
"""
