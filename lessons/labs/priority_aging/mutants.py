"""Plausible wrong queues, each with the check that must catch it."""

MUTANTS = """
priority-aging the_key_is_arrival_and_handicap: returns the handicap
-        return key
+        return key - arrival
priority-aging a_lower_number_goes_first: the higher number goes first
-        handicap = self.level * priority + self.token * self.tokens[request_id]
+        handicap = -self.level * priority + self.token * self.tokens[request_id]
priority-aging a_lower_number_goes_first: first come, first served
-        handicap = self.level * priority + self.token * self.tokens[request_id]
+        handicap = self.token * self.tokens[request_id]
priority-aging waiting_makes_up_for_priority: strict priority
-        self.live[request_id] = entry = (key, arrival, request_id)
+        self.live[request_id] = entry = (key + 1e9 * priority, arrival, request_id)
priority-aging long_prompts_go_later: length does not count
-        handicap = self.level * priority + self.token * self.tokens[request_id]
+        handicap = self.level * priority
priority-aging the_handicap_has_bounds: no upper bound
-        key = arrival + min(self.longest, max(0.0, handicap))
+        key = arrival + max(0.0, handicap)
priority-aging the_handicap_has_bounds: a negative priority earns credit
-        key = arrival + min(self.longest, max(0.0, handicap))
+        key = arrival + min(self.longest, handicap)
priority-aging the_handicap_has_bounds: bounds the two parts one by one
-        handicap = self.level * priority + self.token * self.tokens[request_id]
+        handicap = max(0.0, self.level * priority) + self.token * self.tokens[request_id]
priority-aging equal_keys_go_by_arrival: by id alone
-        self.live[request_id] = entry = (key, arrival, request_id)
+        self.live[request_id] = entry = (key, 0.0, request_id)
priority-aging equal_keys_go_by_arrival: the later arrival first
-        self.live[request_id] = entry = (key, arrival, request_id)
+        self.live[request_id] = entry = (key, -arrival, request_id)
priority-aging a_removed_request_is_gone: stays in the heap as if alive
-        while self.heap and self.live.get(self.heap[0][2]) != self.heap[0]:
+        while self.heap and self.heap[0][2] not in self.live and len(self.heap) > 1:
priority-aging a_removed_request_is_gone: an unknown id is an error
         if request_id not in self.live:
-            return False
+            raise KeyError(request_id)
priority-aging an_id_that_comes_again_has_one_place: an id alone tells a live entry
-        while self.heap and self.live.get(self.heap[0][2]) != self.heap[0]:
+        while self.heap and self.heap[0][2] not in self.live:
priority-aging an_id_that_comes_again_has_one_place: a preempted request is refused
-        self._forget(request_id)
+        self.tokens.pop(request_id)
         return request_id
priority-aging a_change_keeps_the_arrival: a changed request counts its waiting from its old key
-        _, arrival, _ = self.live[request_id]
+        arrival, _, _ = self.live[request_id]
priority-aging a_change_keeps_the_arrival: a change forgets the length
         _, arrival, _ = self.live[request_id]
+        self.tokens[request_id] = 0
priority-aging a_change_keeps_the_arrival: the old entry stays first
-        while self.heap and self.live.get(self.heap[0][2]) != self.heap[0]:
+        while self.heap and self.heap[0][2] not in self.live:
priority-aging errors_change_nothing: an id that waits is taken again
-        if request_id in self.live:
+        if request_id is None:
priority-aging errors_change_nothing: an empty queue gives None
-            raise IndexError("the queue is empty")
+            return None
priority-aging errors_change_nothing: a change adds an unknown request
-        _, arrival, _ = self.live[request_id]
+        _, arrival, _ = self.live.get(request_id, (0.0, 0.0, ""))
+        self.tokens.setdefault(request_id, 1)
priority-aging errors_change_nothing: negative seconds are kept
-        if min(level, token, longest) < 0:
+        if min(level, token) < 0:
priority-aging the_length_counts_the_waiting: counts dead entries
-        return len(self.live)
+        return len(self.heap)
priority-aging random_calls: a change after a preemption revives a dead entry
-        while self.heap and self.live.get(self.heap[0][2]) != self.heap[0]:
+        while self.heap and (self.heap[0][2] not in self.live or self.live[self.heap[0][2]][0] < self.heap[0][0]):
priority-aging the_scheduler_admits_by_it: arrivals are cut to whole seconds
-        key = arrival + min(self.longest, max(0.0, handicap))
+        key = int(arrival) + min(self.longest, max(0.0, handicap))
priority-aging the_next_is_found_in_log_n: the smallest of all live entries
-        while self.heap and self.live.get(self.heap[0][2]) != self.heap[0]:
-            heapq.heappop(self.heap)
-        if not self.heap:
+        if not self.live:
             raise IndexError("the queue is empty")
-        return self.heap[0][2]
+        return min(self.live.values())[2]
@@
-        heapq.heappop(self.heap)
         self._forget(request_id)
         return request_id
priority-aging the_next_is_found_in_log_n: sorts whenever it is asked
+        self.heap.sort()
         while self.heap and self.live.get(self.heap[0][2]) != self.heap[0]:
             heapq.heappop(self.heap)
priority-aging a_removal_costs_the_same_in_any_queue: takes the entry out of the heap
+        self.heap.remove(self.live[request_id])
+        heapq.heapify(self.heap)
         self._forget(request_id)
         return True
priority-aging a_removal_costs_the_same_in_any_queue: builds the heap anew
         self._forget(request_id)
+        self.heap = list(self.live.values())
+        heapq.heapify(self.heap)
         return True
priority-aging a_change_keeps_the_arrival: returns the old key
-        _, arrival, _ = self.live[request_id]
-        return self._enter(request_id, priority, arrival)
+        key, arrival, _ = self.live[request_id]
+        self._enter(request_id, priority, arrival)
+        return key
priority-aging the_length_counts_the_waiting: peek takes the request
+        self.live.pop(self.heap[0][2], None) if len(self.live) == 1 else None
         return self.heap[0][2]
@@
-        del self.live[request_id], self.tokens[request_id]
+        self.live.pop(request_id, None)
+        del self.tokens[request_id]
"""
