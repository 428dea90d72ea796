"""Plausible wrong loops, each with the check that must catch it."""

MUTANTS = """
batching-loop a_prompt_then_a_token_a_step: the whole sequence is computed again in each step
-        start = request.num_computed
-        return request.slot, start, request.tokens[start : start + count]
+        return request.slot, 0, request.tokens[: request.num_computed + count]
batching-loop a_prompt_then_a_token_a_step: the last token is computed, too
-        reason = "stop" if token in self.eos else "length" if len(request.tokens) == request.end else None
+        reason = "stop" if token in self.eos else "length" if len(request.tokens) > request.end else None
batching-loop a_batch_changes_no_token: tokens are handed out in order of the requests, not of the rows
-        for (request, count), token in zip(rows, tokens, strict=True):
+        for (request, count), token in zip(rows, reversed(tokens), strict=True):
batching-loop it_ends_by_stop_or_length: max_tokens wins over eos
-        reason = "stop" if token in self.eos else "length" if len(request.tokens) == request.end else None
+        reason = "length" if len(request.tokens) == request.end else "stop" if token in self.eos else None
batching-loop it_ends_by_stop_or_length: the prompt counts as output
-        end = len(prompt) + max_tokens
+        end = max(len(prompt) + 1, max_tokens)
batching-loop it_ends_by_stop_or_length: eos is not looked for in the first token
-        reason = "stop" if token in self.eos else "length" if len(request.tokens) == request.end else None
+        first = len(request.tokens) == request.num_prompt + 1
+        is_end = len(request.tokens) == request.end
+        reason = "stop" if token in self.eos and not first else "length" if is_end else None
batching-loop a_long_prompt_is_cut: the token of every chunk counts
-            if request.num_computed == len(request.tokens):
+            if request.num_computed:
batching-loop a_long_prompt_is_cut: a prompt waits until it fits as a whole
-            if count > 0 and not request.decodes:
+            if count > 0 and not request.decodes and count == request.num_prompt:
batching-loop decodes_come_first: the budget is for prompts alone
-        left = self.budget - len(rows)
+        left = self.budget
batching-loop decodes_come_first: the shortest prompt first
-        for request in self.running:
+        for request in sorted(self.running, key=lambda each: each.num_prompt):
             count = min(left, request.num_prompt - request.num_computed)
batching-loop a_free_slot_is_taken_in_the_next_step: a batch starts when the one before has ended
-        while self.waiting and self.free:
+        while self.waiting and self.free and (not self.running or len(self.free) > 1):
batching-loop a_free_slot_is_taken_in_the_next_step: last come, first served
-            request = self.waiting.popleft()
+            request = self.waiting.pop()
batching-loop a_new_request_starts_a_slot_afresh: it goes on behind the tokens of the last one
             request.slot = self.free.pop()
+            request.num_computed = self.used.get(request.slot, 0)
+            self.used[request.slot] = 2
@@
         self.waiting: deque[Request] = deque()
+        self.used: dict[int, int] = {}
batching-loop requests_come_at_any_time: what comes during a step is lost
-        self.waiting.append(Request(request_id, list(prompt), end, len(prompt)))
+        if not self.rows:
+            self.waiting.append(Request(request_id, list(prompt), end, len(prompt)))
batching-loop requests_come_at_any_time: the queue is read once a batch
-        while self.waiting and self.free:
+        while self.waiting and self.free and not any(request.decodes for request in self.running):
batching-loop an_aborted_request_leaves: the slot of an aborted request is lost
-        for request in [each for each in self.running if each.is_aborted]:
-            self._leave(request)
+        self.running = [each for each in self.running if not each.is_aborted]
batching-loop an_aborted_request_leaves: only running requests can be aborted
-        for each in [*self.running, *self.waiting]:
+        for each in self.running:
             if each.request_id == request_id and not each.is_aborted:
batching-loop an_abort_while_the_step_runs: its token is delivered
-            if request.is_aborted:
-                continue
             request.num_computed += count
batching-loop an_abort_while_the_step_runs: the slot of a waiting request is given back
-        self.waiting = deque(each for each in self.waiting if not each.is_aborted)
-        for request in [each for each in self.running if each.is_aborted]:
+        for request in [each for each in [*self.running, *self.waiting] if each.is_aborted]:
             self._leave(request)
batching-loop an_abort_while_the_step_runs: the slot stays taken
                 outputs.append(self._append(request, token))
-        self._remove_aborted()
batching-loop an_id_may_come_again: tokens are delivered by id
-            if request.is_aborted:
+            if request.request_id not in self.unfinished:
batching-loop an_id_may_come_again: an id is used for ever
-        if request_id in self.unfinished:
+        if request_id in self.ids:
@@
         self.waiting.append(Request(request_id, list(prompt), end, len(prompt)))
+        self.ids.add(request_id)
@@
         self.waiting: deque[Request] = deque()
+        self.ids: set[str] = set()
batching-loop a_failed_step_counts_for_nothing: tokens count as computed before they are
-        return [self._row(*each) for each in self.rows]
+        found = [self._row(*each) for each in self.rows]
+        for request, count in self.rows:
+            request.num_computed += count
+        return found
@@
-            request.num_computed += count
             if request.num_computed == len(request.tokens):
batching-loop a_failed_step_counts_for_nothing: its requests are aborted
+        for request, _ in self.rows:
+            request.is_aborted = True
         self.rows.clear()
batching-loop a_failed_step_counts_for_nothing: its requests start again from their first token
+        for request, _ in self.rows:
+            request.num_computed = 0
         self.rows.clear()
batching-loop an_idle_step_is_no_work: a request without tokens
-        return [self._row(*each) for each in self.rows]
+        return [self._row(*each) for each in self.rows] or [(0, 0, [])]
batching-loop the_impossible_is_refused: the last token needs a place, too
-        if not prompt or max_tokens < 1 or end - 1 > self.max_len:
+        if not prompt or max_tokens < 1 or end > self.max_len:
batching-loop the_impossible_is_refused: any length is accepted
-        if not prompt or max_tokens < 1 or end - 1 > self.max_len:
+        if not prompt or max_tokens < 1:
batching-loop the_impossible_is_refused: a budget below the number of slots
-        if not 1 <= num_slots <= budget:
+        if not 1 <= num_slots or not budget:
batching-loop random_lives: an abort in a failing step keeps its slot
         self.rows.clear()
-        self._remove_aborted()
batching-loop the_engines_worker_runs_on_it: token ids have ten bits
-        return request.slot, start, request.tokens[start : start + count]
+        return request.slot, start, [token & 1023 for token in request.tokens[start : start + count]]
batching-loop random_lives: an unknown request counts as aborted
                 return True
-        return False
+        return True
"""
