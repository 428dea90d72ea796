"""Plausible wrong solutions of lesson 10."""

MUTANTS = """
10.1 a_long_prompt_is_cut: admits a prompt only if it fits into the step as a whole
-            if not budget or need > free or len(running) == self.max_num_seqs:
+            if seq.known - seq.computed > budget or need > free or len(running) == self.max_num_seqs:
10.1 a_long_prompt_is_cut: the first chunk is half of the budget
-            tokens = min(seq.known - seq.computed, budget)
+            tokens = min(seq.known - seq.computed, max(1, self.token_budget // 2))
             rows.append((seq.id, tokens))
             running.append(seq)
10.1 every_step_is_within_budget: decodes do not count
-            budget, free, index = budget - tokens, free - max(need, 0), index + 1
+            budget, free, index = budget - (tokens if tokens > 1 else 0), free - max(need, 0), index + 1
10.1 every_step_is_within_budget: the budget limits each prompt, not the step
-            tokens = min(seq.known - seq.computed, budget)
+            tokens = min(seq.known - seq.computed, self.token_budget)
             need = self._num_blocks(seq.computed + tokens) - seq.blocks
10.1 running_requests_go_first: unfinished prompts before decodes
-        budget, free, running = self.token_budget, num_free_blocks, list(running)
+        running = sorted(running, key=lambda seq: seq.computed - seq.known)
+        budget, free = self.token_budget, num_free_blocks
10.1 running_requests_go_first: newest first
-        budget, free, running = self.token_budget, num_free_blocks, list(running)
+        budget, free, running = self.token_budget, num_free_blocks, list(running)[::-1]
10.1 every_row_has_its_blocks: an admitted prompt reserves blocks for its first chunk only
-            need = self._num_blocks(seq.known) - seq.blocks
+            need = self._num_blocks(min(seq.known, seq.computed + budget)) - seq.blocks
             if not budget or need > free or len(running) == self.max_num_seqs:
10.1 every_row_has_its_blocks: a request that preempts itself keeps its row
-            if len(running) == index:  # it was the last and is preempted itself
-                break
+            if len(running) == index:
+                running.append(seq)
10.1 every_row_has_its_blocks: an admitted request takes no blocks from the next one
-            budget, free = budget - tokens, free - need
+            budget = budget - tokens
10.1 victims_come_from_the_tail: preempts the oldest
-                victim = running.pop()
+                victim = running.pop(index)
10.1 victims_come_from_the_tail: preempts one request too many
-            while need > free and len(running) > index:
+            while need >= free and need > 0 and len(running) > index:
10.1 admission_keeps_the_order: a small request overtakes a large one
-                break
+                continue
             tokens = min(seq.known - seq.computed, budget)
             rows.append((seq.id, tokens))
             running.append(seq)
10.1 admission_keeps_the_order: admits while it preempts
-        for seq in [] if preempted else waiting:
+        for seq in waiting:
10.1 admission_keeps_the_order: counts cached blocks as new ones
-            need = self._num_blocks(seq.known) - seq.blocks
+            need = self._num_blocks(seq.known)
10.1 admission_keeps_the_order: one request too many
-            if not budget or need > free or len(running) == self.max_num_seqs:
+            if not budget or need > free or len(running) > self.max_num_seqs:
10.1 plans_equal_the_engines: two prompts never share a step
-            budget, free = budget - tokens, free - need
+            budget, free = 0, free - need
10.2 the_slo_comes_first: takes the lowest TTFT of all budgets
-                break
+                pass
             total += ttft
10.2 the_slo_comes_first: an equal gap misses
-            if sorted(gaps)[ceil(len(gaps) * 99 / 100) - 1] > itl_slo:
+            if sorted(gaps)[ceil(len(gaps) * 99 / 100) - 1] >= itl_slo:
10.2 the_lowest_ttft_wins: takes the largest budget that meets the SLO
-    return min(ttft_of, key=lambda budget: (ttft_of[budget], budget), default=None)
+    return max(ttft_of, default=None)
10.2 the_lowest_ttft_wins: the TTFT of the last seed counts
-            ttft_of[budget] = total / len(seeds)
+            ttft_of[budget] = ttft
10.2 the_lowest_ttft_wins: of equal TTFTs the first in the list
-    return min(ttft_of, key=lambda budget: (ttft_of[budget], budget), default=None)
+    return min(ttft_of, key=ttft_of.__getitem__, default=None)
10.2 p99_is_the_nearest_rank: the largest gap
-            if sorted(gaps)[ceil(len(gaps) * 99 / 100) - 1] > itl_slo:
+            if max(gaps) > itl_slo:
10.2 p99_is_the_nearest_rank: rounds the rank down
-            if sorted(gaps)[ceil(len(gaps) * 99 / 100) - 1] > itl_slo:
+            if sorted(gaps)[max(0, int(len(gaps) * 99 / 100) - 1)] > itl_slo:
10.2 p99_is_the_nearest_rank: the mean gap
-            if sorted(gaps)[ceil(len(gaps) * 99 / 100) - 1] > itl_slo:
+            if sum(gaps) / len(gaps) > itl_slo:
10.2 every_seed_must_meet_it: replays the first seed only
-        for seed in seeds:
+        for seed in seeds[:1]:
10.2 every_seed_must_meet_it: pools the gaps of all seeds
-        total = 0.0
-        for seed in seeds:
-            ttft, gaps = replay(budget, seed)
-            if sorted(gaps)[ceil(len(gaps) * 99 / 100) - 1] > itl_slo:
-                break
-            total += ttft
-        else:
-            ttft_of[budget] = total / len(seeds)
+        runs = [replay(budget, seed) for seed in seeds]
+        gaps = sorted(gap for _, each in runs for gap in each)
+        if gaps[ceil(len(gaps) * 99 / 100) - 1] <= itl_slo:
+            ttft_of[budget] = sum(ttft for ttft, _ in runs) / len(seeds)
10.2 no_budget_is_an_answer: the smallest budget if none fits
-    return min(ttft_of, key=lambda budget: (ttft_of[budget], budget), default=None)
+    return min(ttft_of, key=lambda budget: (ttft_of[budget], budget), default=min(budgets))
10.2 it_holds_on_five_seeds: stops at the first budget that misses
         else:
             ttft_of[budget] = total / len(seeds)
+            if len(ttft_of) == 1:
+                break
10.3 passes_are_rounded_up: drops the short chunk at the end
-    ends = [*range(cached + chunk, prompt_len, chunk), prompt_len]
+    ends = list(range(cached + chunk, prompt_len + 1, chunk))
10.3 passes_are_rounded_up: an empty chunk at the end
-    ends = [*range(cached + chunk, prompt_len, chunk), prompt_len]
+    ends = [*range(cached + chunk, prompt_len + 1, chunk), prompt_len]
10.3 kv_is_read_again: reads each position once
-    return {"passes": len(ends), "kv_read": sum(ends), "pairs": pairs}
+    return {"passes": len(ends), "kv_read": prompt_len, "pairs": pairs}
10.3 kv_is_read_again: reads only what earlier chunks left
-    return {"passes": len(ends), "kv_read": sum(ends), "pairs": pairs}
+    return {"passes": len(ends), "kv_read": sum(ends[:-1]), "pairs": pairs}
10.3 pairs_stay_the_same: no causal mask between chunks
-    return {"passes": len(ends), "kv_read": sum(ends), "pairs": pairs}
+    return {"passes": len(ends), "kv_read": sum(ends), "pairs": sum(ends) * chunk}
10.3 pairs_stay_the_same: a token does not attend to itself
-    pairs = sum(position + 1 for position in range(cached, prompt_len))
+    pairs = sum(range(cached, prompt_len))
10.3 cached_tokens_are_read_not_computed: computes the cached tokens, too
-    ends = [*range(cached + chunk, prompt_len, chunk), prompt_len]
+    ends = [*range(chunk, prompt_len, chunk), prompt_len]
10.3 cached_tokens_are_read_not_computed: does not read the cached KV
-    return {"passes": len(ends), "kv_read": sum(ends), "pairs": pairs}
+    return {"passes": len(ends), "kv_read": sum(end - cached for end in ends), "pairs": pairs}
10.3 cached_tokens_are_read_not_computed: pairs of the cached queries, too
-    pairs = sum(position + 1 for position in range(cached, prompt_len))
+    pairs = sum(position + 1 for position in range(prompt_len))
10.3 the_simulator_counts_the_same: pairs as a float
-    return {"passes": len(ends), "kv_read": sum(ends), "pairs": pairs}
+    return {"passes": len(ends), "kv_read": sum(ends), "pairs": prompt_len * prompt_len / 2}
"""
