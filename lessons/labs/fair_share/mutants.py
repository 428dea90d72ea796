"""Plausible wrong keys, each with the check that must catch it."""

MUTANTS = """
fair-share tenants_take_turns_by_tokens: first come, first served
-        start = max(self.last.get(tenant, 0.0), self.virtual_time)
+        start = self.largest
fair-share tenants_take_turns_by_tokens: turns by requests
-        finish = start + tokens / self.weights.get(tenant, 1.0)
+        finish = start + 1 / self.weights.get(tenant, 1.0)
fair-share tenants_take_turns_by_tokens: shortest job first
-        start = max(self.last.get(tenant, 0.0), self.virtual_time)
+        start = self.virtual_time
fair-share the_key_is_the_finish: returns the start
-        return finish
+        return start
fair-share a_weight_is_a_share: the weight multiplies
-        finish = start + tokens / self.weights.get(tenant, 1.0)
+        finish = start + tokens * self.weights.get(tenant, 1.0)
fair-share a_weight_is_a_share: weights do not count
-        finish = start + tokens / self.weights.get(tenant, 1.0)
+        finish = start + tokens
fair-share absence_earns_no_credit: a tenant starts where it stopped
-        start = max(self.last.get(tenant, 0.0), self.virtual_time)
+        start = self.last.get(tenant, 0.0)
fair-share absence_earns_no_credit: a newcomer starts at 0
-        start = max(self.last.get(tenant, 0.0), self.virtual_time)
+        start = max(self.last[tenant], self.virtual_time) if tenant in self.last else 0.0
fair-share an_idle_server_forgets: virtual time falls back to 0
-        return min(self.starts.values(), default=self.largest)
+        return min(self.starts.values(), default=0.0)
fair-share virtual_time_follows_the_unfinished: the mean of the starts
-        return min(self.starts.values(), default=self.largest)
+        return sum(self.starts.values()) / len(self.starts) if self.starts else self.largest
fair-share virtual_time_follows_the_unfinished: the last start
-        return min(self.starts.values(), default=self.largest)
+        return list(self.starts.values())[-1] if self.starts else self.largest
fair-share virtual_time_follows_the_unfinished: finished requests count for ever
-        self.starts.pop(request_id, None)
+        pass
fair-share an_unknown_id_is_no_error: finishing twice
-        self.starts.pop(request_id, None)
+        del self.starts[request_id]
fair-share a_refused_call_changes_nothing: charged before the check
+        self.last[tenant] = self.last.get(tenant, 0.0) + tokens
         if request_id in self.starts:
fair-share a_refused_call_changes_nothing: an unfinished id is taken again
-        if request_id in self.starts:
+        if request_id is None:
fair-share a_refused_call_changes_nothing: a weight of 0 is kept
-        if any(not weight > 0 for weight in self.weights.values()):
+        if any(weight < 0 for weight in self.weights.values()):
fair-share random_traffic: a tenant's tag is dropped with its request
-        self.starts.pop(request_id, None)
+        if self.starts.pop(request_id, None) is not None and not self.starts:
+            self.last.clear()
+            self.largest = 0.0
fair-share an_id_may_come_again: an id that has ended never counts again
-        self.starts.pop(request_id, None)
+        self.ended = {*getattr(self, "ended", ()), request_id}
@@
-        return min(self.starts.values(), default=self.largest)
+        ended = getattr(self, "ended", ())
+        return min((start for each, start in self.starts.items() if each not in ended), default=self.largest)
@@
-        if request_id in self.starts:
+        if request_id in self.starts and request_id not in getattr(self, "ended", ()):
fair-share an_id_may_come_again: every id is taken once
-        self.starts.pop(request_id, None)
+        if request_id in self.starts:
+            self.starts[request_id] = float("inf")
@@
-        return min(self.starts.values(), default=self.largest)
+        first = min(self.starts.values(), default=float("inf"))
+        return self.largest if first == float("inf") else first
fair-share a_refused_call_changes_nothing: a request without tokens is taken
-        if tokens < 1:
+        if tokens < 0:
fair-share the_scheduler_shares_by_it: beyond 20 unfinished requests a tenant's last tag is forgotten
-        start = max(self.last.get(tenant, 0.0), self.virtual_time)
+        start = max(self.last.get(tenant, 0.0) if len(self.starts) <= 20 else 0.0, self.virtual_time)
"""
