"""Plausible wrong solutions of lesson 16."""

MUTANTS = """
16.1 memory_limits_the_batch: plans memory for the whole output from the start
-    return min(max_num_seqs, kv_tokens // (prompt_len + output_len // 2))
+    return min(max_num_seqs, kv_tokens // (prompt_len + output_len))
16.1 memory_limits_the_batch: promises one request although none fits
-    return min(max_num_seqs, kv_tokens // (prompt_len + output_len // 2))
+    return max(1, min(max_num_seqs, kv_tokens // (prompt_len + output_len // 2)))
16.1 prompts_and_answers_both_work: plans for the larger of the two
-    return math.ceil((prefill_busy + decode_busy) / utilisation)
+    return math.ceil(max(prefill_busy, decode_busy) / utilisation)
16.1 a_step_serves_a_batch: counts a step for every request
-    decode_busy = rate * output_len * step_s / batch
+    decode_busy = rate * output_len * step_s
16.1 spare_capacity_is_planned: multiplies by the utilisation
-    return math.ceil((prefill_busy + decode_busy) / utilisation)
+    return math.ceil((prefill_busy + decode_busy) * utilisation)
16.1 spare_capacity_is_planned: rounds to the nearest replica
-    return math.ceil((prefill_busy + decode_busy) / utilisation)
+    return max(1, round((prefill_busy + decode_busy) / utilisation))
16.1 impossible_plans_are_refused: accepts a utilisation above 1
-    if batch < 1 or not 0 < utilisation <= 1:
+    if batch < 1 or utilisation <= 0:
16.2 tokens_have_a_price: takes the price of an hour for that of a second
-    return dollars_per_hour / 3600 / tokens_per_s * 1e6
+    return dollars_per_hour / tokens_per_s * 1e6
16.2 break_even_is_a_share: turns the share around
-    share = cost_per_million_tokens(dollars_per_hour, full_tokens_per_s) / api_price
+    share = api_price / cost_per_million_tokens(dollars_per_hour, full_tokens_per_s)
16.2 a_slow_fleet_never_breaks_even: promises a load above 100 %
-    return share if share <= 1 else None
+    return share
16.2 nothing_else_is_rounded: rounds to cents
-    return dollars_per_hour / 3600 / tokens_per_s * 1e6
+    return round(dollars_per_hour / 3600 / tokens_per_s * 1e6, 2)
16.3 demand_is_told_from_supply: looks at latency before demand
+    if grew("itl_p50") > 1.5:
+        return "throttled_gpu"
     if grew("answer_tokens") > 1.5:
16.3 cache_faults_are_told_apart: takes a full pool for no fault without the hit rate
-    if today["preemptions"] > yesterday["preemptions"] and today["kv_usage"] > 0.95:
-        return "small_pool"
16.3 budget_faults_are_told_apart: reads the p99 of the gap, which is lower without chunks
-    if grew("itl_max") > 2:
+    if grew("itl_p99") > 2:
16.3 a_healthy_day_is_healthy: raises an alarm for every deviation
-    if grew("ttft_p50") > 2:
+    if grew("ttft_p50") > 1.05:
16.3 zeros_do_no_harm: divides by yesterday
-        return today[name] / max(yesterday[name], 1e-9)
+        return today[name] / yesterday[name]
16.1 random_plans_agree: rounds up the parts instead of their sum
-    return math.ceil((prefill_busy + decode_busy) / utilisation)
+    return math.ceil(prefill_busy / utilisation) + math.ceil(decode_busy / utilisation)
16.3 other_days_agree: compares the gap between tokens with a limit of another machine
-    if grew("itl_p50") > 1.5:
+    if today["itl_p50"] > 0.05:
"""
