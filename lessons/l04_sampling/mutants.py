"""Plausible wrong solutions of lesson 04."""

MUTANTS = """
04.1 greedy_takes_the_smallest_best: all tokens that tie for the best share the probability
-        best = logits.index(peak)
-        return [float(token == best) for token in range(len(logits))]
+        best = [float(logit == peak) for logit in logits]
+        return [value / sum(best) for value in best]
04.1 temperature_divides_the_logits: multiplies by the temperature
-    weights = [math.exp((logit - peak) / temperature) for logit in logits]
+    weights = [math.exp((logit - peak) * temperature) for logit in logits]
04.1 top_k_counts_tokens: drops tokens that tie with the k-th
-        floor = sorted(weights, reverse=True)[top_k - 1]
-        weights = [weight if weight >= floor else 0.0 for weight in weights]
+        kept = sorted(range(len(weights)), key=lambda token: -weights[token])[:top_k]
+        weights = [weight if token in kept else 0.0 for token, weight in enumerate(weights)]
04.1 top_k_counts_tokens: keeps one token too many
-        floor = sorted(weights, reverse=True)[top_k - 1]
+        floor = sorted(weights, reverse=True)[top_k]
04.1 top_p_includes_the_crossing_token: drops the token that crosses p
                 break
-        weights = [weight if weight >= floor else 0.0 for weight in weights]
+        weights = [weight if weight > floor or weight == 1 else 0.0 for weight in weights]
04.1 top_p_includes_the_crossing_token: top-p is a floor under single probabilities
-        wanted, mass = top_p * sum(weights), 0.0
-        for floor in sorted(weights, reverse=True):
-            mass += floor
-            if mass >= wanted:
-                break
+        floor = (1 - top_p) * sum(weights)
04.1 filters_come_after_temperature: top-p is measured before the temperature
-        wanted, mass = top_p * sum(weights), 0.0
+        wanted, mass = top_p * sum(w**temperature for w in weights), 0.0
         for floor in sorted(weights, reverse=True):
-            mass += floor
+            mass += floor**temperature
04.1 filters_come_after_temperature: top-p counts the mass that top-k removed
     if 0 < top_k < len(weights):
+        before = sum(weights)
@@
-        wanted, mass = top_p * sum(weights), 0.0
+        wanted, mass = top_p * (before if 0 < top_k < len(logits) else sum(weights)), 0.0
04.1 survivors_keep_their_ratios: does not scale the survivors
     weights = [math.exp((logit - peak) / temperature) for logit in logits]
+    total = sum(weights)
@@
-    total = sum(weights)
     return [weight / total for weight in weights]
04.1 extreme_logits_are_safe: exponentials of raw logits overflow
-    weights = [math.exp((logit - peak) / temperature) for logit in logits]
+    weights = [math.exp(logit / temperature) for logit in logits]
04.2 defaults_change_nothing: presence is on by default
-    presence: float = 0.0,
+    presence: float = 0.1,
04.2 repetition_lowers_both_signs: divides negative logits, too, which raises them
-        penalised[token] = logit / repetition if logit > 0 else logit * repetition
+        penalised[token] = logit / repetition
04.2 repetition_sees_the_prompt: repetition looks at the output only
-    seen = counts.keys() | set(prompt_ids)
+    seen = counts.keys()
04.2 repetition_sees_the_prompt: penalises a token once per occurrence
-    for token in seen:
-        logit = logits[token]
+    for token in prompt_ids + output_ids:
+        logit = penalised[token]
         penalised[token] = logit / repetition if logit > 0 else logit * repetition
04.2 presence_is_subtracted_once: presence counts occurrences
-        penalised[token] -= frequency * count + presence
+        penalised[token] -= (frequency + presence) * count
04.2 presence_is_subtracted_once: presence looks at the prompt, too
-    for token, count in counts.items():
-        penalised[token] -= frequency * count + presence
+    for token in seen:
+        penalised[token] -= frequency * counts[token] + presence
04.2 frequency_counts_occurrences: frequency is subtracted once
-        penalised[token] -= frequency * count + presence
+        penalised[token] -= frequency + presence
04.2 frequency_counts_occurrences: frequency counts the prompt
-    counts = Counter(output_ids)
+    counts = Counter(prompt_ids + output_ids)
04.2 repetition_comes_first: repetition sees logits that the others have lowered
         logit = logits[token]
+        if token in counts:
+            logit -= frequency * counts[token] + presence
         penalised[token] = logit / repetition if logit > 0 else logit * repetition
-    for token, count in counts.items():
-        penalised[token] -= frequency * count + presence
04.3 shares_lie_in_order_of_ids: orders tokens by probability
-    for token, prob in enumerate(probs):
+    for prob, token in sorted(((prob, token) for token, prob in enumerate(probs)), reverse=True):
04.3 shares_lie_in_order_of_ids: returns the most likely token, whatever the uniform
-    return chosen
+    return probs.index(max(probs))
04.3 left_ends_belong_to_the_token: gives the left end to the token before
-            if uniform < passed:
+            if uniform <= passed:
04.3 rounding_leaves_no_gap: falls back on the last token of the vocabulary
-    return chosen
+    return chosen if uniform < passed else len(probs) - 1
04.3 impossible_tokens_are_never_drawn: takes the first token at which the running sum reaches the number
-        if prob > 0:
+        if prob >= 0:
@@
-            if uniform < passed:
+            if uniform <= passed:
04.3 rounding_leaves_no_gap: remembers an impossible token as the last one
-        if prob > 0:
+        if prob >= 0:
04.3 rounding_leaves_no_gap: has no answer beyond the sum
-    return chosen
+    return chosen if uniform < passed else -1
04.3 frequencies_follow_the_probabilities: rounds the uniform to one digit, which doubles the share of a rare token
-    passed, chosen = 0.0, -1
+    passed, chosen, uniform = 0.0, -1, int(uniform * 10) / 10
"""
