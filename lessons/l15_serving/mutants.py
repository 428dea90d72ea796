"""Plausible wrong solutions of lesson 15."""

MUTANTS = """
15.1 limits_are_kept: lets one request too many run
-        if len(self._running) < self.max_running:
+        if len(self._running) <= self.max_running:
15.1 limits_are_kept: never rejects
-        return "reject"
+        self._waiting.append(request_id)
+        return "wait"
15.1 slots_go_to_the_first_in_line: serves the newest first
-        following = self._waiting.popleft()
+        following = self._waiting.pop()
15.1 slots_go_to_the_first_in_line: takes a request out of the queue and forgets that it runs
-        self._running.add(following)
15.1 aborts_free_what_was_held: frees the slot of an aborted request and starts no other
-            return self.finish(request_id)
+            self._running.remove(request_id)
15.1 aborts_free_what_was_held: leaves aborted requests in the queue
-            self._waiting.remove(request_id)
+            pass
15.1 ids_are_unique: looks for the id among the running only
-        if request_id in self._running or request_id in self._waiting:
+        if request_id in self._running:
15.1 only_running_requests_finish: ignores a finish of a request that waits
-            raise ValueError(f"request {request_id} does not run")
+            return None
15.1 nothing_leaks: an aborted request keeps its slot
-            return self.finish(request_id)
+            return None
15.2 percentiles_interpolate: takes the value below
-    return low if share == 0 or high == low else low + (high - low) * share  # inf - inf is NaN
+    return low
15.2 percentiles_interpolate: expects sorted values
-    ordered = sorted(values)
+    ordered = list(values)
15.2 infinite_times_have_percentiles: subtracts infinity from infinity
-    return low if share == 0 or high == low else low + (high - low) * share  # inf - inf is NaN
+    return low + (high - low) * share
15.2 no_values_no_percentile: returns 0 for no values, which looks like a good latency
-        raise ValueError("no values, so no percentile")
+        return 0.0
15.2 both_objectives_count: one objective is enough
-        if num_tokens and first - arrival <= ttft_slo:
-            good += num_tokens == 1 or (last - first) / (num_tokens - 1) <= tpot_slo
+        if num_tokens:
+            tpot = (last - first) / max(1, num_tokens - 1)
+            good += first - arrival <= ttft_slo or tpot <= tpot_slo
15.2 ttft_counts_from_the_arrival: divides by all tokens
-            good += num_tokens == 1 or (last - first) / (num_tokens - 1) <= tpot_slo
+            good += (last - first) / num_tokens <= tpot_slo
15.2 missing_answers_are_not_good: counts requests that were never answered
-        if num_tokens and first - arrival <= ttft_slo:
-            good += num_tokens == 1 or (last - first) / (num_tokens - 1) <= tpot_slo
+        if num_tokens == 0 or first - arrival <= ttft_slo:
+            good += num_tokens <= 1 or (last - first) / (num_tokens - 1) <= tpot_slo
15.3 events_have_the_format: one line end after an event
-    lines = [f"data: {json.dumps(event)}\\n\\n" for event in events]
+    lines = [f"data: {json.dumps(event)}\\n" for event in events]
15.3 events_have_the_format: prints Python instead of JSON
-    lines = [f"data: {json.dumps(event)}\\n\\n" for event in events]
+    lines = [f"data: {event}\\n\\n" for event in events]
15.3 whole_events_are_read: forgets a line that is cut
-        *lines, self._rest = (self._rest + chunk).split(b"\\n")
+        lines = chunk.split(b"\\n")
15.3 cuts_do_not_matter: decodes pieces instead of lines
+        chunk = chunk.decode(errors="replace").encode()
         *lines, self._rest = (self._rest + chunk).split(b"\\n")
15.3 other_lines_are_ignored: returns events without data
-            elif not line and self._data:
+            elif not line:
15.3 data_lines_are_joined: strips all spaces
-                self._data.append(line[5:].removeprefix(" "))
+                self._data.append(line[5:].strip())
"""
