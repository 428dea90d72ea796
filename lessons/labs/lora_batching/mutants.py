"""Plausible wrong admissions, each with the check that must catch it."""

MUTANTS = """
lora-batching the_base_model_needs_no_slot: the base model is an adapter too
-        if not adapter:
-            return -1
+        pass
lora-batching the_base_model_needs_no_slot: the base model waits behind a closed slot
         if not adapter:
-            return -1
+            return -1 if self.closed < 0 else None
lora-batching an_adapter_is_shared: one request per slot
-        elif slot == self.closed:
+        elif slot == self.closed or self.users[slot]:
lora-batching an_adapter_is_shared: every request takes a slot
-        slot = self.slot_of.get(adapter)
+        slot = None
lora-batching a_slot_in_use_is_not_replaced: the slot falls idle with its first user
-            if not self.users[slot]:
-                self.idle[slot] = None
+            self.idle[slot] = None
lora-batching a_slot_in_use_is_not_replaced: an adapter in use is replaced
-            if not self.idle:
-                return None
-            slot = next(iter(self.idle))
+            slot = next(iter(self.idle), 0)
lora-batching idle_adapters_stay: an idle slot is emptied
             if not self.users[slot]:
+                self.slot_of.pop(self._adapter_in(slot))
                 self.idle[slot] = None
+                self.idle.move_to_end(slot, last=False)
lora-batching idle_adapters_stay: the last empty slot first
-        self.idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(max_loras))
+        self.idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(max_loras - 1, -1, -1))
lora-batching the_longest_idle_is_replaced: the lowest idle number
-            slot = next(iter(self.idle))
+            slot = min(self.idle)
lora-batching the_longest_idle_is_replaced: the one that fell idle last
-            slot = next(iter(self.idle))
+            empty = [slot for slot in self.idle if slot not in self.slot_of.values()]
+            slot = empty[0] if empty else next(reversed(self.idle))
lora-batching the_longest_idle_is_replaced: the replaced adapter is still found
-            self.slot_of = {name: at for name, at in self.slot_of.items() if at != slot}
+            pass
lora-batching the_longest_idle_is_replaced: a slot in use again keeps its place in the order
+        if self.users[slot] == 1 and adapter in self.slot_of:
+            self.stale = {**getattr(self, "stale", {}), slot: list(self.idle).index(slot)}
         self.idle.pop(slot, None)
@@
             if not self.users[slot]:
                 self.idle[slot] = None
+                if self.stale.get(slot, 1) == 0:
+                    self.idle.move_to_end(slot, last=False)
lora-batching others_overtake: strictly in order
                 self.closed, self.closed_for = self._choose(waiting), request_id
+            if slot is None:
+                break
lora-batching one_slot_closes: no slot closes, as in vLLM
-                self.closed, self.closed_for = self._choose(waiting), request_id
+                pass
lora-batching one_slot_closes: it closes in the next step
         started: list[tuple[str, int]] = []
+        late = self.closed
@@
-        return started, self.closed
+        closed, self.closed = self.closed, late if late >= 0 else -1
+        return started, closed
lora-batching one_slot_closes: another slot closes for each request
-            elif self.closed < 0:
+            else:
                 self.closed, self.closed_for = self._choose(waiting), request_id
lora-batching it_stays_closed_until_the_request_starts: chosen again in each step
+        if self.closed >= 0:
+            self.closed = self._choose(waiting)
         started: list[tuple[str, int]] = []
lora-batching it_stays_closed_until_the_request_starts: it opens in the next step
-                if request_id == self.closed_for:
-                    self.closed = -1
+                pass
lora-batching it_stays_closed_until_the_request_starts: it opens when any request starts
-                if request_id == self.closed_for:
-                    self.closed = -1
+                self.closed = -1
lora-batching a_client_that_leaves_opens_it: it waits for a request that has left
-        if self.closed >= 0 and all(request_id != self.closed_for for request_id, _ in waiting):
+        if self.closed >= 0 and not waiting:
lora-batching seats_are_limited: the limit is not looked at
-            if len(started) == seats:
-                break
+            pass
lora-batching seats_are_limited: a slot closes without a seat
             if len(started) == seats:
+                if self.closed < 0 and adapter and adapter not in self.slot_of and not self.idle:
+                    self.closed, self.closed_for = self._choose(waiting), request_id
                 break
lora-batching no_request_starves: no slot closes while the queue is long
-            elif self.closed < 0:
+            elif self.closed < 0 and len(waiting) < 3:
lora-batching the_longest_idle_is_replaced: ends of one step in reverse
-        for request_id in ended:
+        for request_id in reversed(ended):
lora-batching a_client_that_leaves_opens_it: a call without seats returns early
+        if not seats:
+            return [], self.closed
         for request_id in ended:
lora-batching random_traffic: the base model uses the last slot
-        if slot >= 0:
+        if slot is not None:
             self.users[slot] -= 1
lora-batching the_engine_runs_it: the slot with the fewest users is replaced
-            if not self.idle:
-                return None
-            slot = next(iter(self.idle))
+            slot = next(iter(self.idle), min(range(len(self.users)), key=self.users.__getitem__))
lora-batching no_slot_is_refused: no slot at all
-        if max_loras < 1:
+        if max_loras < 0:
lora-batching the_base_model_needs_no_slot: the slot of the base model is 0
-                started.append((request_id, slot))
+                started.append((request_id, max(slot, 0)))
"""
