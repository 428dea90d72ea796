"""Plausible wrong solutions of lesson 12."""

MUTANTS = """
12.1 drafts_follow_the_earlier_ending: drafts begin with the ending itself
-                return token_ids[start + size : start + size + num_drafts]
+                return token_ids[start : start + num_drafts]
12.1 the_longest_ending_counts_first: shortest ending first
-    for size in range(min(max_ngram, len(token_ids) - 1), 0, -1):
+    for size in range(1, min(max_ngram, len(token_ids) - 1) + 1):
12.1 the_longest_ending_counts_first: compares endings of any length
-    for size in range(min(max_ngram, len(token_ids) - 1), 0, -1):
+    for size in range(len(token_ids) - 1, 0, -1):
12.1 the_most_recent_match_counts: the first occurrence
-        for start in range(len(token_ids) - size - 1, -1, -1):
+        for start in range(len(token_ids) - size):
12.1 no_more_than_num_drafts: everything that follows
-                return token_ids[start + size : start + size + num_drafts]
+                return token_ids[start + size :]
12.1 no_more_than_num_drafts: waits for a match with enough tokens behind it
-            if token_ids[start : start + size] == ending:
+            if token_ids[start : start + size] == ending and start + size + num_drafts <= len(token_ids):
12.1 matches_may_overlap: an occurrence must end before the ending begins
-        for start in range(len(token_ids) - size - 1, -1, -1):
+        for start in range(len(token_ids) - 2 * size, -1, -1):
12.1 matches_may_overlap: finds the ending itself
-        for start in range(len(token_ids) - size - 1, -1, -1):
+        for start in range(len(token_ids) - size, -1, -1):
12.1 text_without_repeats_has_no_drafts: repeats the last token
-    return []
+    return token_ids[-1:] * num_drafts
12.1 random_texts_equal_a_search_by_hand: misses a match at the start of the text
-        for start in range(len(token_ids) - size - 1, -1, -1):
+        for start in range(len(token_ids) - size - 1, 0, -1):
12.2 without_drafts_it_is_plain_sampling: the most likely token
+    return max(range(len(weights)), key=weights.__getitem__)
     sums = list(accumulate(weights))
12.2 without_drafts_it_is_plain_sampling: one token too far
-    possible = (token for token, total in enumerate(sums) if total > uniform * sums[-1])
+    possible = (token + 1 for token, total in enumerate(sums) if total > uniform * sums[-1])
12.2 acceptance_is_the_ratio: accepts if the uniform is below p
-        if uniforms[index] * q[draft] >= p[draft]:
+        if uniforms[index] >= p[draft]:
12.2 acceptance_is_the_ratio: accepts all that the target likes as much as the drafter
-        if uniforms[index] * q[draft] >= p[draft]:
+        if q[draft] > p[draft]:
12.2 acceptance_is_the_ratio: a draft that the target excludes passes with uniform 0
-        if uniforms[index] * q[draft] >= p[draft]:
+        if uniforms[index] * q[draft] > p[draft]:
12.2 a_rejection_draws_from_the_residual: draws from the target again
-            residual = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
+            residual = p
12.2 a_rejection_draws_from_the_residual: |p - q|
-            residual = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
+            residual = [abs(a - b) for a, b in zip(p, q, strict=True)]
12.2 a_rejection_draws_from_the_residual: weights are not normalised
-    possible = (token for token, total in enumerate(sums) if total > uniform * sums[-1])
+    possible = (token for token, total in enumerate(sums) if total > uniform)
12.2 the_first_rejection_ends_the_step: goes on behind a rejected draft
-            return [*drafts[:index], _draw(residual, uniforms[-1])]
+            drafts = [*drafts[:index], _draw(residual, uniforms[-1]), *drafts[index + 1 :]]
12.2 the_first_rejection_ends_the_step: drops the replacement
-            return [*drafts[:index], _draw(residual, uniforms[-1])]
+            return drafts[:index] or [_draw(residual, uniforms[-1])]
12.2 all_accepted_gives_one_more: no token of the target at the end
-    return [*drafts, _draw(target_probs[-1], uniforms[-1])]
+    return drafts or [_draw(target_probs[-1], uniforms[-1])]
12.2 all_accepted_gives_one_more: takes the first row for the extra token
-    return [*drafts, _draw(target_probs[-1], uniforms[-1])]
+    return [*drafts, _draw(target_probs[0], uniforms[-1])]
12.2 the_output_is_distributed_as_the_target: accepts every draft
-        if uniforms[index] * q[draft] >= p[draft]:
+        if p[draft] == 0.0:
12.2 the_output_is_distributed_as_the_target: one uniform decides on all drafts
-        if uniforms[index] * q[draft] >= p[draft]:
+        if uniforms[-1] * q[draft] >= p[draft]:
12.3 tokens_until_the_first_wrong_draft: every right draft counts
-    return sum(alpha**position for position in range(k + 1))
+    return 1 + k * alpha
12.3 tokens_until_the_first_wrong_draft: without the target's own token
-    return sum(alpha**position for position in range(k + 1))
+    return sum(alpha**position for position in range(1, k + 1))
12.3 certain_drafts_divide_nothing_by_zero: the closed form alone
-    return sum(alpha**position for position in range(k + 1))
+    return (1 - alpha ** (k + 1)) / (1 - alpha)
12.3 a_step_costs_drafts_and_verification: one draft per step
-    return expected_tokens(alpha, k) / (k * cost + verify) if k else 1.0
+    return expected_tokens(alpha, k) / (cost + verify) if k else 1.0
12.3 a_step_costs_drafts_and_verification: verification is free
-    return expected_tokens(alpha, k) / (k * cost + verify) if k else 1.0
+    return expected_tokens(alpha, k) / (k * cost + 1) if k else 1.0
12.3 no_drafts_no_change: charges for verification without drafts
-    return expected_tokens(alpha, k) / (k * cost + verify) if k else 1.0
+    return expected_tokens(alpha, k) / (k * cost + verify)
12.3 best_k_wins_or_stays_at_zero: at least one draft
-    return max(range(len(verify_of)), key=lambda k: (speedup(alpha, k, cost, verify_of[k]), -k))
+    return max(range(1, len(verify_of)), key=lambda k: (speedup(alpha, k, cost, verify_of[k]), -k), default=0)
12.3 best_k_wins_or_stays_at_zero: ignores what verification costs
-    return max(range(len(verify_of)), key=lambda k: (speedup(alpha, k, cost, verify_of[k]), -k))
+    return max(range(len(verify_of)), key=lambda k: (speedup(alpha, k, cost), -k))
12.3 best_k_wins_or_stays_at_zero: the largest of equal ones
-    return max(range(len(verify_of)), key=lambda k: (speedup(alpha, k, cost, verify_of[k]), -k))
+    return max(range(len(verify_of)), key=lambda k: (speedup(alpha, k, cost, verify_of[k]), k))
"""
