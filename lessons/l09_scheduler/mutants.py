"""Plausible wrong solutions of lesson 09."""

MUTANTS = """
09.1 enough_free_needs_no_victim: at least one victim
-        if need <= free:
+        if need <= free and victims:
09.1 enough_free_needs_no_victim: exactly enough is too little
-        if need <= free:
+        if need < free:
09.1 the_tail_goes_first: preempts the oldest
-    for seq in reversed(running):
+    for seq in running:
09.1 the_tail_goes_first: preempts the largest
-    for seq in reversed(running):
+    for seq in sorted(running, key=lambda seq: -seq.blocks):
09.1 no_victim_too_many: ignores the free blocks
     victims = []
+    need, free = (need, 0) if need > free else (need, free)
09.1 no_victim_too_many: a victim frees one block
-        free += seq.blocks
+        free += 1
09.1 impossible_is_an_error: preempts all and hopes
-    if need > free:
-        raise MemoryError(f"{need} blocks needed, {free} in all")
     return victims
09.1 impossible_is_an_error: spares the most important
-    for seq in reversed(running):
+    for seq in reversed(running[1:]):
09.1 random_victims: skips requests that hold only one block
+        if seq.blocks == 0:
+            continue
         victims.append(seq.id)
09.2 tokens_fit_the_budget: decodes do not count
-            budget, free, index = budget - tokens, free - need, index + 1
+            free, index = free - need, index + 1
09.2 tokens_fit_the_budget: cuts a prompt to the budget
-            if tokens > budget or need > free or len(rows) == self.max_num_seqs:
+            tokens = min(tokens, budget)
+            if not tokens or need > free or len(rows) == self.max_num_seqs:
09.2 tokens_fit_the_budget: each prompt has the budget for itself
             rows.append((seq.id, tokens))
-            budget, free = budget - tokens, free - need
+            free = free - need
09.2 a_row_beyond_the_budget_ends_the_rows: skips a large row and goes on
             if tokens > budget:
-                break
+                index += 1
+                continue
09.2 seats_are_limited: one request too many
-            if tokens > budget or need > free or len(rows) == self.max_num_seqs:
+            if tokens > budget or need > free or len(rows) > self.max_num_seqs:
09.2 seats_are_limited: the limit counts prompts only
-            if tokens > budget or need > free or len(rows) == self.max_num_seqs:
+            if tokens > budget or need > free or len(rows) - len(running) == self.max_num_seqs:
09.2 blocks_suffice: blocks of the tokens that are computed already
-        return max(0, -(-seq.known // self.block_size) - seq.blocks)
+        return max(0, -(-max(seq.computed, 1) // self.block_size) - seq.blocks)
09.2 blocks_suffice: a running request takes no blocks from the next
-            budget, free, index = budget - tokens, free - need, index + 1
+            budget, index = budget - tokens, index + 1
09.2 blocks_suffice: an admitted request takes no blocks from the next
-            budget, free = budget - tokens, free - need
+            budget = budget - tokens
09.2 blocks_suffice: counts a victim's blocks twice
-                free += victim.blocks
+                free += 2 * victim.blocks
09.2 victims_do_not_run: a request that preempts itself keeps its row
-            if len(running) == index:  # it was the last one and is preempted itself
-                break
+            if len(running) == index:
+                running.append(seq)
09.2 important_requests_go_first: preempts the oldest
-                victim = running.pop()
+                victim = running.pop(index)
09.2 important_requests_go_first: newest first
-        budget, free, running = self.token_budget, num_free_blocks, list(running)
+        budget, free, running = self.token_budget, num_free_blocks, list(running)[::-1]
09.2 important_requests_go_first: preempts until a spare block is free
-            while need > free and len(running) > index:
+            while need and need >= free and len(running) > index + (need <= free):
09.2 the_queue_keeps_its_order: admits while it preempts
-        if preempted or index < len(running):
-            return Plan(rows, preempted)
         for seq in waiting:
09.2 the_queue_keeps_its_order: a small request overtakes a large one
             if tokens > budget or need > free or len(rows) == self.max_num_seqs:
-                break
+                continue
             rows.append((seq.id, tokens))
09.2 the_queue_keeps_its_order: shortest first
-        for seq in waiting:
+        for seq in sorted(waiting, key=lambda seq: seq.known):
09.2 all_finish_in_time: one prompt per step
-            budget, free = budget - tokens, free - need
+            budget, free = 0, free - need
09.2 all_finish_in_time: admits only into an empty batch
-        if preempted or index < len(running):
+        if preempted or running:
09.2 all_finish_in_time: keeps a reserve of one block
-            if tokens > budget or need > free or len(rows) == self.max_num_seqs:
+            if tokens > budget or need >= free or len(rows) == self.max_num_seqs:
09.2 cached_blocks_cost_nothing: counts cached blocks as new ones
-            tokens, need = seq.known - seq.computed, self._num_new_blocks(seq)
+            tokens, need = seq.known - seq.computed, -(-seq.known // self.block_size)
             if tokens > budget or need > free or len(rows) == self.max_num_seqs:
09.3 swap_moves_blocks_twice: one way only
-    swap = 2 * -(-num_tokens // block_size) * block_bytes / link_bytes_per_second
+    swap = -(-num_tokens // block_size) * block_bytes / link_bytes_per_second
09.3 swap_moves_blocks_twice: part of a block
-    swap = 2 * -(-num_tokens // block_size) * block_bytes / link_bytes_per_second
+    swap = 2 * num_tokens / block_size * block_bytes / link_bytes_per_second
09.3 recompute_pays_tokens_and_pairs: attention is free
-    recompute = num_tokens * seconds_per_token + pairs * seconds_per_pair
+    recompute = num_tokens * seconds_per_token
09.3 recompute_pays_tokens_and_pairs: no causal mask
-    pairs = num_tokens * (num_tokens + 1) // 2
+    pairs = num_tokens * num_tokens
09.3 recompute_pays_tokens_and_pairs: a token has no pair with itself
-    pairs = num_tokens * (num_tokens + 1) // 2
+    pairs = num_tokens * (num_tokens - 1) // 2
09.3 the_cheaper_one_wins: always recomputes
-    return ("recompute", recompute) if recompute <= swap else ("swap", swap)
+    return ("recompute", recompute)
09.3 the_cheaper_one_wins: takes the more expensive one
-    return ("recompute", recompute) if recompute <= swap else ("swap", swap)
+    return ("recompute", recompute) if recompute > swap else ("swap", swap)
09.3 a_tie_is_recomputed: a tie is swapped
-    return ("recompute", recompute) if recompute <= swap else ("swap", swap)
+    return ("recompute", recompute) if recompute < swap else ("swap", swap)
09.3 random_costs: assumes blocks of 16
-    swap = 2 * -(-num_tokens // block_size) * block_bytes / link_bytes_per_second
+    swap = 2 * -(-num_tokens // 16) * block_bytes / link_bytes_per_second
"""
