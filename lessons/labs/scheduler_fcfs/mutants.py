"""Plausible wrong schedulers, each with the check that must catch it."""

MUTANTS = """
scheduler-fcfs a_prompt_then_a_token_a_step: the sampled token is not appended
-            job.known += job.request_id in sampled
+            job.known = max(job.known, job.computed)
scheduler-fcfs a_prompt_then_a_token_a_step: a decode computes everything again
-        return job.request_id, start, count
+        return job.request_id, 0, start + count
scheduler-fcfs a_long_prompt_is_cut: prompts are never cut
-            count = min(job.known, budget)
+            if job.known > budget:
+                break
+            count = job.known
scheduler-fcfs a_long_prompt_is_cut: the budget does not limit a chunk
-            count = min(job.known, budget)
+            count = job.known
scheduler-fcfs running_requests_come_first: waiting requests come first
         index = 0
+        while self.waiting and budget and len(self.running) < self.max_num_seqs:
+            job = self.waiting[0]
+            if self._blocks_for(job.known) > self.free:
+                break
+            self.running.append(self.waiting.popleft())
+            self._take(job, self._blocks_for(job.known))
+            count = min(job.known, budget)
+            rows.append(self._compute(job, count))
+            budget -= count
scheduler-fcfs running_requests_come_first: decodes cost no budget
             rows.append(self._compute(job, count))
-            budget -= count
+            budget -= count if count > 1 else 0
             index += 1
scheduler-fcfs running_requests_come_first: the newest runs first
         while index < len(self.running) and budget:
-            job = self.running[index]
+            job = self.running[len(self.running) - 1 - index]
scheduler-fcfs seats_are_limited: one request too many runs
-        while self.waiting and budget and not preempted and len(self.running) < self.max_num_seqs:
+        while self.waiting and budget and not preempted and len(self.running) <= self.max_num_seqs:
scheduler-fcfs seats_are_limited: the limit counts the admissions of a step
-        while self.waiting and budget and not preempted and len(self.running) < self.max_num_seqs:
+        most = len(self.running) + self.max_num_seqs
+        while self.waiting and budget and not preempted and len(self.running) < most:
scheduler-fcfs none_overtakes: the smallest goes first
-            job = self.waiting[0]
+            job = min(self.waiting, key=lambda each: each.known)
+            self.waiting.remove(job)
+            self.waiting.appendleft(job)
             need = self._blocks_for(job.known)
scheduler-fcfs none_overtakes: a request that lacks blocks is skipped
-            if need > self.free:
+            fits = [each for each in self.waiting if self._blocks_for(each.known) <= self.free]
+            if not fits:
                 break
+            self.waiting.remove(fits[0])
+            self.waiting.appendleft(fits[0])
+            job, need = fits[0], self._blocks_for(fits[0].known)
scheduler-fcfs all_blocks_at_the_start: blocks for the first chunk alone
-            need = self._blocks_for(job.known)
+            need = self._blocks_for(min(job.known, budget))
scheduler-fcfs blocks_grow_one_by_one: one block more than needed
-        return -(-num_tokens // self.block_size)
+        return num_tokens // self.block_size + 1
scheduler-fcfs blocks_grow_one_by_one: a block per token after the prompt
-        need = max(need, job.blocks)
+        need = max(need, job.blocks) if job.computed < job.known - 1 else job.blocks + 1
scheduler-fcfs blocks_grow_one_by_one: an ended request keeps its blocks
             if job.request_id in ended:
-                self._take(job, 0)
+                job.blocks = 0
scheduler-fcfs the_last_one_is_preempted: the first one is preempted
-            victim = self.running.pop()
+            victim = self.running.pop(0)
scheduler-fcfs the_last_one_is_preempted: the request without a block is preempted
-            victim = self.running.pop()
+            victim = job
+            self.running.remove(job)
scheduler-fcfs the_last_one_is_preempted: the largest is preempted
-            victim = self.running.pop()
+            victim = max(self.running[self.running.index(job):], key=lambda each: each.blocks)
+            self.running.remove(victim)
scheduler-fcfs the_preempted_resume_first: the last of several victims resumes last
-            self.waiting.appendleft(victim)
+            self.waiting.insert(len(preempted), victim)
scheduler-fcfs it_may_preempt_itself: the last request waits in its seat
+            if self.running[-1] is job:
+                return False
             victim = self.running.pop()
scheduler-fcfs it_may_preempt_itself: the preempted request has a row
             if victim is job:
-                return False
+                return True
scheduler-fcfs the_preempted_resume_first: they queue at the end
-            self.waiting.appendleft(victim)
+            self.waiting.append(victim)
scheduler-fcfs the_preempted_resume_first: computed tokens survive
-            victim.computed = 0
+            pass
scheduler-fcfs the_preempted_resume_first: the output is forgotten
     blocks: int = 0
+    prompt: int = 0
@@
-        self.waiting.append(Job(request_id, num_tokens))
+        self.waiting.append(Job(request_id, num_tokens, prompt=num_tokens))
@@
-            victim.computed = 0
+            victim.computed, victim.known = 0, victim.prompt
scheduler-fcfs the_ended_leave: an aborted request stays in the queue
-        self.waiting = deque(job for job in self.waiting if job.request_id not in ended)
+        pass
scheduler-fcfs the_ended_leave: an unknown id is an error
+        for name in ended:
+            next(job for job in [*self.running, *self.waiting] if job.request_id == name)
         for job in self.running:
             job.known += job.request_id in sampled
scheduler-fcfs the_impossible_is_refused: the last token needs a slot
-        if self._blocks_for(num_tokens + max_tokens - 1) > self.num_blocks:
+        if self._blocks_for(num_tokens + max_tokens) > self.num_blocks:
scheduler-fcfs the_impossible_is_refused: only the prompt is looked at
-        if self._blocks_for(num_tokens + max_tokens - 1) > self.num_blocks:
+        if self._blocks_for(num_tokens) > self.num_blocks:
scheduler-fcfs the_impossible_is_refused: an id is taken twice
-        if any(job.request_id == request_id for job in [*self.waiting, *self.running]):
+        if any(job.request_id == request_id for job in self.running):
scheduler-fcfs random_workloads: the victims of one step resume in the wrong order
-            self.waiting.appendleft(victim)
+            self.waiting.insert(min(1, len(preempted)), victim)
scheduler-fcfs the_engine_decides_the_same: decodes wait while a prompt is cut
+        if self.running and self.running[-1].known - self.running[-1].computed > budget:
+            index = len(self.running) - 1
         while index < len(self.running) and budget:
scheduler-fcfs all_blocks_at_the_start: one block is never used
-        self.free = num_blocks
+        self.free = num_blocks - 1
"""
