"""Plausible wrong solutions of lesson 06, as diffs; the format is explained in quizzes/mutant_diffs.py."""

MUTANTS = """
06.1 slots_are_the_limit: admits everything that waits
-        while self._waiting and len(self._running) < self._slots:
+        while self._waiting:
06.1 a_free_slot_is_taken_before_the_next_step: admits only into an empty batch
-        while self._waiting and len(self._running) < self._slots:
+        is_empty = not self._running
+        while is_empty and self._waiting and len(self._running) < self._slots:
06.1 requests_start_in_order_of_arrival: takes the newest first
-            request_id, num_tokens = self._waiting.popleft()
+            request_id, num_tokens = self._waiting.pop()
06.1 random_workloads_take_as_many_steps_as_list_scheduling: admits one request per step
-        while self._waiting and len(self._running) < self._slots:
+        if self._waiting and len(self._running) < self._slots:
06.1 one_request_takes_its_tokens: frees the slot one step late
-            if self._running[request_id] == 0:
+            if self._running[request_id] < 0:
06.1 a_late_request_joins_a_running_batch: closes the door while requests run
-        self._waiting.append((request_id, num_tokens))
+        if not self._running:
+            self._waiting.append((request_id, num_tokens))
06.1 no_slots_are_refused: accepts zero slots
-        if slots < 1:
+        if slots < 0:
06.2 groups_last_as_long_as_their_longest: a group lasts as long as its mean
-    return sum(max(lens[start : start + slots]) for start in range(0, len(lens), slots))
+    groups = [lens[start : start + slots] for start in range(0, len(lens), slots)]
+    return sum(-(-sum(group) // len(group)) for group in groups)
06.2 a_last_group_may_be_small: leaves out a group that is not full
-    return sum(max(lens[start : start + slots]) for start in range(0, len(lens), slots))
+    return sum(max(lens[start : start + slots]) for start in range(0, len(lens) - slots + 1, slots))
06.2 order_of_arrival_is_kept: sorts by length first
+    lens = sorted(lens)
     return sum(max(lens[start : start + slots]) for start in range(0, len(lens), slots))
06.2 use_counts_tokens_per_slot_step: forgets the slots
-    return sum(lens) / (slots * steps) if steps else 0.0
+    return sum(lens) / steps if steps else 0.0
06.2 use_counts_tokens_per_slot_step: divides by zero when nothing ran
-    return sum(lens) / (slots * steps) if steps else 0.0
+    return sum(lens) / (slots * steps)
06.3 nothing_takes_no_steps: takes the maximum of nothing
-    if not lens:
-        return 0, 0
06.3 one_long_request_decides: rounds the tokens per slot down
-    return max(longest, -(-total // slots)), (total - longest) // slots + longest
+    return max(longest, total // slots), (total - longest) // slots + longest
06.3 one_long_request_decides: ignores the longest request
-    return max(longest, -(-total // slots)), (total - longest) // slots + longest
+    return -(-total // slots), (total - longest) // slots + longest
06.3 every_order_lies_between: takes the least for the most
-    return max(longest, -(-total // slots)), (total - longest) // slots + longest
+    return max(longest, -(-total // slots)), max(longest, -(-total // slots))
06.3 most_is_grahams_bound: total as the most
-    return max(longest, -(-total // slots)), (total - longest) // slots + longest
+    return max(longest, -(-total // slots)), total
06.3 equal_requests_meet_the_least: counts the longest twice
-    return max(longest, -(-total // slots)), (total - longest) // slots + longest
+    return longest + -(-total // slots), (total - longest) // slots + longest
"""
