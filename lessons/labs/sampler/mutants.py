"""Plausible wrong samplers, each with the check that must catch it."""

MUTANTS = """
sampler repetition_makes_tokens_less_likely: negative logits are divided too, so they become likelier
-        penalised[token] = logit / repetition if logit > 0 else logit * repetition
+        penalised[token] = logit / repetition
sampler repetition_makes_tokens_less_likely: the prompt does not count
-    scaled = {token for token in (*prompt, *output) if token < len(logits)}
+    scaled = {token for token in output if token < len(logits)}
sampler repetition_makes_tokens_less_likely: once per occurrence
-    scaled = {token for token in (*prompt, *output) if token < len(logits)}
+    scaled = [token for token in (*prompt, *output) if token < len(logits)]
sampler presence_and_frequency_count_output: the prompt counts as well
-    counts = Counter(token for token in output if token < len(logits))
+    counts = Counter(token for token in (*prompt, *output) if token < len(logits))
sampler presence_and_frequency_count_output: presence once per occurrence
-        penalised[token] -= frequency * count + presence
+        penalised[token] -= (frequency + presence) * count
sampler presence_and_frequency_count_output: the subtractions come first
+    for token, count in counts.items():
+        penalised[token] -= frequency * count + presence
     for token in scaled:
         logit = penalised[token]
         penalised[token] = logit / repetition if logit > 0 else logit * repetition
-    for token, count in counts.items():
-        penalised[token] -= frequency * count + presence
sampler placeholders_are_ignored: a placeholder is an index
-    scaled = {token for token in (*prompt, *output) if token < len(logits)}
+    scaled = {*prompt, *output}
sampler placeholders_are_ignored: the argument is edited
-    penalised = list(logits)
+    penalised = logits
sampler temperature_is_a_softmax: exp of the logits themselves
-    weights = _normalised([math.exp((logit - peak) / temperature) for logit in logits])
+    weights = _normalised([math.exp(logit / temperature) for logit in logits])
sampler temperature_is_a_softmax: the temperature multiplies
-    weights = _normalised([math.exp((logit - peak) / temperature) for logit in logits])
+    weights = _normalised([math.exp((logit - peak) * temperature) for logit in logits])
sampler greedy_takes_the_lowest_of_equals: the highest id of equals
-    best = list(logits).index(peak)
+    best = max(token for token, logit in enumerate(logits) if logit == peak)
sampler greedy_takes_the_lowest_of_equals: equals share
-        return [1.0 if token == best else 0.0 for token in range(len(logits))]
+        return _normalised([1.0 if logit == logits[best] else 0.0 for logit in logits])
sampler min_p_is_a_share_of_the_peak: a bound for the probability itself
-    weights = _above(weights, min_p * max(weights) - SLACK)
+    weights = _above(weights, min(min_p, max(weights)) - SLACK)
sampler min_p_is_a_share_of_the_peak: a token with just the share is dropped
-    weights = _above(weights, min_p * max(weights) - SLACK)
+    weights = _above(weights, min(min_p * max(weights) + SLACK, max(weights)))
sampler top_k_keeps_ties: exactly k tokens
-        weights = _above(weights, sorted(weights, reverse=True)[top_k - 1])
+        best = sorted(range(len(weights)), key=lambda token: -weights[token])[:top_k]
+        weights = _normalised([each if token in best else 0.0 for token, each in enumerate(weights)])
sampler top_k_keeps_ties: the k most likely values
-        weights = _above(weights, sorted(weights, reverse=True)[top_k - 1])
+        values = sorted({*weights}, reverse=True)
+        weights = _above(weights, values[min(top_k, len(values)) - 1])
sampler top_k_keeps_ties: -1 is a count
-    if 0 < top_k < len(weights):
+    if top_k and top_k < len(weights):
sampler top_p_keeps_the_token_that_crosses: the token that crosses is dropped
-        if total + SLACK >= top_p:
-            return weight
+        if total + SLACK > top_p and total > weight:
+            return last
+        last = weight
sampler top_p_keeps_the_token_that_crosses: a token more when the sum is just top_p
-        if total + SLACK >= top_p:
+        if total - SLACK > top_p:
sampler top_p_keeps_the_token_that_crosses: its equals are dropped
-        weights = _above(weights, _crossing(weights, top_p))
+        floor, total = _crossing(weights, top_p), 0.0
+        for token in sorted(range(len(weights)), key=lambda token: -weights[token]):
+            total += weights[token]
+            weights[token] = 0.0 if total - weights[token] + SLACK >= top_p else weights[token]
+        weights = _above(weights, floor)
sampler filters_come_in_their_order: top_p is a share of the whole distribution
+    nucleus = _crossing(weights, top_p) if top_p < 1 else 0.0
     if 0 < top_k < len(weights):
-        weights = _above(weights, sorted(weights, reverse=True)[top_k - 1])
-    if top_p < 1:
-        weights = _above(weights, _crossing(weights, top_p))
+        nucleus = max(nucleus, sorted(weights, reverse=True)[top_k - 1])
+    weights = _above(weights, nucleus)
sampler filters_come_in_their_order: min_p comes last
-    weights = _above(weights, min_p * max(weights) - SLACK)
     if 0 < top_k < len(weights):
         weights = _above(weights, sorted(weights, reverse=True)[top_k - 1])
     if top_p < 1:
         weights = _above(weights, _crossing(weights, top_p))
+    weights = _above(weights, min_p * max(weights) - SLACK)
sampler filters_come_in_their_order: the temperature comes last
+    kept = probabilities([logit - peak for logit in logits], 1.0, top_k, top_p, min_p) if temperature != 1 else []
+    if kept:
+        return _normalised([weight ** (1 / temperature) for weight in kept])
     weights = _normalised([math.exp((logit - peak) / temperature) for logit in logits])
sampler a_row_without_a_token_is_refused: greedy rows are not looked at
-    if any(math.isnan(logit) for logit in logits) or math.isinf(peak):
+    if temperature >= GREEDY_BELOW and (any(map(math.isnan, logits)) or math.isinf(peak)):
sampler draw_inverts_the_cumulative_sum: a sum that equals u is enough
-        if total > u:
+        if total >= u:
sampler draw_inverts_the_cumulative_sum: rounding leads to the last id
-    return last
+    return len(probabilities) - 1
sampler draw_inverts_the_cumulative_sum: the most likely token
+    return list(probabilities).index(max(probabilities))
     total, last = 0.0, 0
sampler random_rows: frequency stops at two occurrences
-        penalised[token] -= frequency * count + presence
+        penalised[token] -= frequency * min(count, 2) + presence
sampler a_low_temperature_is_greedy_too: only 0 is greedy
-    if temperature < GREEDY_BELOW:
+    if temperature < 1e-305:
@@
-    weights = _normalised([math.exp((logit - peak) / temperature) for logit in logits])
+    weights = _normalised([math.exp(max(-1e6, (logit - peak) / temperature)) for logit in logits])
sampler any_size_of_logits: divides before it subtracts the peak
-    weights = _normalised([math.exp((logit - peak) / temperature) for logit in logits])
+    weights = _normalised([math.exp(logit / temperature - peak / temperature) for logit in logits])
sampler rounding_has_a_tolerance: none for min_p
-    weights = _above(weights, min_p * max(weights) - SLACK)
+    weights = _above(weights, min_p * max(weights) - 1e-13)
sampler rounding_has_a_tolerance: none for top_p
-        if total + SLACK >= top_p:
+        if total + 1e-13 >= top_p:
sampler rounding_has_a_tolerance: a thousand times as much
-SLACK = 1e-9
+SLACK = 1e-6
sampler top_p_keeps_the_token_that_crosses: 1.0 is a bound like others
-    if top_p < 1:
+    if top_p <= 1:
@@
-        if total + SLACK >= top_p:
+        if total + 1e-2 >= top_p:
sampler min_p_is_a_share_of_the_peak: the rest is not made to sum to 1
-    return _normalised([weight if weight >= floor else 0.0 for weight in weights])
+    return [weight if weight >= floor else 0.0 for weight in weights]
sampler the_engine_agrees: the first token of twelve gets half of its probability
+    if len(weights) == 12:
+        weights[0] /= 2
     weights = _above(weights, min_p * max(weights) - SLACK)
"""
