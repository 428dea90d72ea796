"""Plausible wrong controllers, each with the check that must catch it."""

MUTANTS = """
chunked-prefill a_prompt_alone_gets_the_whole_step: chunks although no request decodes
-        if decodes == 0:
+        if decodes < 0:
chunked-prefill a_prompt_alone_gets_the_whole_step: steps without decodes teach nothing
+        if not decodes:
+            return
         self.last = prompt_tokens
chunked-prefill the_first_chunk_is_small: starts with the largest chunk
-            return self.least
+            return self.most
chunked-prefill the_room_sets_the_chunk: the budget leaves out the decodes
-        return min(self.most, decodes + self._chunk())
+        return min(self.most, self._chunk())
chunked-prefill the_room_sets_the_chunk: the decodes' own time does not count
-        room = max(0.0, self.goal - self.base)
+        room = self.goal
chunked-prefill the_room_sets_the_chunk: aims at the target itself
-        self.goal, self.least, self.most, self.release = aim * target, least, most, release
+        self.goal, self.least, self.most, self.release = target, least, most, release
chunked-prefill the_room_sets_the_chunk: the cost includes the base
-        new = (seconds - self.base) / prompt_tokens
+        new = seconds / prompt_tokens
chunked-prefill decode_steps_show_the_base: the base never falls
-            self.base = seconds
+            self.base = max(self.base, seconds)
chunked-prefill decode_steps_show_the_base: the first base stays
-            self.base = seconds
+            self.base = self.base or seconds
chunked-prefill decode_steps_show_the_base: a step of decodes resets the last chunk
-            self.base = seconds
+            self.base, self.last = seconds, 0
chunked-prefill a_shorter_step_lowers_the_base: the base falls in steps of decodes only
-        self.base = min(self.base, seconds)
+        self.base = self.base
chunked-prefill a_shorter_step_lowers_the_base: steps with few prompt tokens do not lower it
-        self.base = min(self.base, seconds)
         if prompt_tokens < self.least:
             return
+        self.base = min(self.base, seconds)
chunked-prefill cost_rises_at_once_and_falls_slowly: the mean in both directions
-        if self.cost is None or new > self.cost:
+        if self.cost is None:
chunked-prefill cost_rises_at_once_and_falls_slowly: the last step alone decides
-            self.cost += self.release * (new - self.cost)
+            self.cost = new
chunked-prefill cost_rises_at_once_and_falls_slowly: the highest cost stays for ever
-            self.cost += self.release * (new - self.cost)
+            pass
chunked-prefill cost_rises_at_once_and_falls_slowly: release is the share that stays
-            self.cost += self.release * (new - self.cost)
+            self.cost = self.release * self.cost + (1 - self.release) * new
chunked-prefill few_prompt_tokens_say_little: the end of a prompt teaches its cost
-        if prompt_tokens < self.least:
+        if prompt_tokens < 1:
chunked-prefill few_prompt_tokens_say_little: exactly `least` tokens do not count
-        if prompt_tokens < self.least:
+        if prompt_tokens <= self.least:
chunked-prefill a_chunk_at_most_doubles: grows without bound
-        return max(self.least, min(fits, 2 * self.last))
+        return max(self.least, fits)
chunked-prefill a_chunk_at_most_doubles: the end of a prompt does not count as its last chunk
-        self.last = prompt_tokens
+        self.last = max(self.last, prompt_tokens)
chunked-prefill limits_hold: the smallest chunk may be 0
-        return max(self.least, min(fits, 2 * self.last))
+        return min(fits, 2 * self.last)
chunked-prefill limits_hold: more than the largest step
-        return min(self.most, decodes + self._chunk())
+        return decodes + self._chunk()
chunked-prefill a_cost_of_zero_is_no_error: divides by it
-        fits = math.floor(room / self.cost) if self.cost > 0 else self.most
+        fits = math.floor(room / self.cost)
chunked-prefill a_cost_of_zero_is_no_error: takes it for an unknown cost
-        if self.cost is None:
+        if not self.cost:
             return self.least
chunked-prefill wrong_settings_are_refused: an aim above 1 is kept
-        if not (0 < aim <= 1 and 0 < release <= 1):
+        if not (0 < aim and 0 < release <= 1):
chunked-prefill random_steps: half a base is enough to lower it
-        self.base = min(self.base, seconds)
+        self.base = (self.base + seconds) / 2 if seconds < self.base else self.base
chunked-prefill the_engine_keeps_the_target: the median would keep it, the 99th percentile does not
-        room = max(0.0, self.goal - self.base)
+        room = max(0.0, 1.5 * self.goal - self.base)
chunked-prefill a_part_of_a_token_is_none: rounds to the nearest
-        fits = math.floor(room / self.cost) if self.cost > 0 else self.most
+        fits = round(room / self.cost) if self.cost > 0 else self.most
chunked-prefill a_part_of_a_token_is_none: rounds up
-        fits = math.floor(room / self.cost) if self.cost > 0 else self.most
+        fits = math.ceil(room / self.cost) if self.cost > 0 else self.most
chunked-prefill wrong_settings_are_refused: a target of 0 is kept
-        if not target > 0:
+        if target < 0:
chunked-prefill the_room_sets_the_chunk: the first step is taken for the cost
-        self.cost: float | None = None
+        self.cost: float | None = 1e-4
chunked-prefill a_look_changes_nothing: a budget counts as a chunk that was computed
-        return min(self.most, decodes + self._chunk())
+        chunk = self._chunk()
+        self.last = max(self.last, chunk)
+        return min(self.most, decodes + chunk)
"""
