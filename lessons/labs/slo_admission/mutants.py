"""Plausible wrong admissions, each with the check that must catch it."""

MUTANTS = """
slo-admission an_idle_server_admits: refuses although nothing is admitted
-        if self.admitted and self.forecast(tokens) > limit:
+        if self.forecast(tokens) > limit:
slo-admission a_rate_is_a_sum_over_a_sum: the mean of the rates of steps
-        self.events = self.events * fade + events
-        self.seconds = self.seconds * fade + seconds
+        self.events = self.events * fade + events / seconds
+        self.seconds = self.seconds * fade + 1
slo-admission a_rate_is_a_sum_over_a_sum: the last step alone
-        fade = math.exp(-seconds / self.window)
+        fade = 0.0
slo-admission only_steps_with_prompts_tell_their_rate: every step counts
-        if prompt_tokens:
+        if prompt_tokens >= 0:
slo-admission old_steps_fade: all steps count alike
-        fade = math.exp(-seconds / self.window)
+        fade = 1.0
slo-admission old_steps_fade: every step fades alike, however long it took
-        fade = math.exp(-seconds / self.window)
+        fade = math.exp(-0.02 / self.window)
slo-admission old_steps_fade: fades after adding
-        self.events = self.events * fade + events
-        self.seconds = self.seconds * fade + seconds
+        self.events = (self.events + events) * fade
+        self.seconds = (self.seconds) * fade + seconds
slo-admission prompts_count_until_the_first_token: counts its own prompt only
-        compute = self.prompts.seconds_for(self.queued + tokens)
+        compute = self.prompts.seconds_for(tokens)
slo-admission prompts_count_until_the_first_token: leaves out its own prompt
-        compute = self.prompts.seconds_for(self.queued + tokens)
+        compute = self.prompts.seconds_for(self.queued)
slo-admission prompts_count_until_the_first_token: a prompt counts until its end
-                self.queued -= self.admitted[request_id]
+                pass
slo-admission prompts_count_until_the_first_token: a second first token counts again
-            if request_id in self.admitted and request_id not in self.started:
+            if request_id in self.admitted:
slo-admission a_full_engine_makes_it_wait: seats do not count
-        return max(compute, self.ends.seconds_for(excess) + own) if excess > 0 else compute
+        return compute
slo-admission a_full_engine_makes_it_wait: one seat too many
-        excess = len(self.admitted) + 1 - self.seats
+        excess = len(self.admitted) - self.seats
slo-admission a_full_engine_makes_it_wait: only those without a first token wait for seats
-        excess = len(self.admitted) + 1 - self.seats
+        excess = len(self.admitted) - len(self.started) + 1 - self.seats
slo-admission the_longer_wait_counts: the sum of both
-        return max(compute, self.ends.seconds_for(excess) + own) if excess > 0 else compute
+        return compute + self.ends.seconds_for(excess) if excess > 0 else compute
slo-admission the_longer_wait_counts: its own prompt takes no time after the seat
-        return max(compute, self.ends.seconds_for(excess) + own) if excess > 0 else compute
+        return max(compute, self.ends.seconds_for(excess)) if excess > 0 else compute
slo-admission the_longer_wait_counts: without a free seat the queue does not count
-        return max(compute, self.ends.seconds_for(excess) + own) if excess > 0 else compute
+        return self.ends.seconds_for(excess) + own if excess > 0 else compute
slo-admission unknown_rates_count_as_nothing: divides by zero
-        return events * self.seconds / self.events if self.events else 0.0
+        return events * self.seconds / self.events
slo-admission unknown_rates_count_as_nothing: refuses without a rate
-        return events * self.seconds / self.events if self.events else 0.0
+        return events * self.seconds / self.events if self.events else math.inf
slo-admission the_limit_decides: equal is too late
-        if self.admitted and self.forecast(tokens) > limit:
+        if self.admitted and self.forecast(tokens) >= limit:
slo-admission the_limit_decides: a refused request is queued all the same
+            self.queued += tokens
             return False
slo-admission ended_requests_are_forgotten: a client that left counts as an end
         self.started.discard(request_id)
+        self.ends.events += 1
slo-admission ended_requests_are_forgotten: a prompt that left stays queued
-        if request_id not in self.started:
+        if request_id is None:
slo-admission ended_requests_are_forgotten: an unknown id is an error
-        tokens = self.admitted.pop(request_id, 0)
+        tokens = self.admitted.pop(request_id)
slo-admission ended_requests_are_forgotten: a returning id counts as started
-        self.started.discard(request_id)
+        pass
slo-admission wrong_calls_are_refused: an id that has not ended is taken again
-        if request_id in self.admitted:
+        if request_id is None:
slo-admission wrong_calls_are_refused: a window of 0 is kept
-        if seats < 1 or not window > 0:
+        if seats < 1:
slo-admission random_traffic: the sums of the ends fade in steps with ends only
-        self.ends.add(len(done), seconds)
+        if done:
+            self.ends.add(len(done), seconds)
slo-admission the_engine_answers_in_time: a forecast of half the time
-        if self.admitted and self.forecast(tokens) > limit:
+        if self.admitted and self.forecast(tokens) > 2 * limit:
slo-admission a_rate_is_a_sum_over_a_sum: a second is counted before the first step
-        self.events = self.seconds = 0.0
+        self.events, self.seconds = 0.0, 1.0
slo-admission prompts_count_until_the_first_token: a question is queued like a request
+        self.queued += tokens
         own = self.prompts.seconds_for(tokens)
"""
