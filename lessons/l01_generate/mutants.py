"""Plausible wrong solutions of lesson 01."""

MUTANTS = """
01.1 tokens_are_the_most_likely: takes the least likely token
-        token = max(range(len(logits)), key=logits.__getitem__)
+        token = min(range(len(logits)), key=logits.__getitem__)
01.1 stops_after_max_tokens: counts the prompt towards max_tokens
-    while len(generated) < max_tokens:
+    while len(prompt_ids) + len(generated) < max_tokens:
01.1 stops_at_the_end_token: drops the end token
-        generated.append(token)
         if token in eos_ids:
             break
+        generated.append(token)
01.1 stops_at_the_end_token: never stops early
-        if token in eos_ids:
+        if token is None:
01.1 stops_at_the_end_token: stops at the first of eos_ids only
-        if token in eos_ids:
+        if eos_ids and token == next(iter(eos_ids)):
01.1 the_prompt_may_contain_the_end_token: looks for the end token in the whole sequence
-        if token in eos_ids:
+        if any(each in eos_ids for each in prompt_ids + generated):
01.1 each_pass_sees_everything: feeds only the newest token, without a cache
-        logits = model(prompt_ids + generated)
+        logits = model(generated[-1:] or prompt_ids)
01.1 each_pass_sees_everything: computes one pass more than it needs
     generated: list[int] = []
+    model(prompt_ids)
01.1 ties_go_to_the_smallest_id: the last of equal logits wins
-        token = max(range(len(logits)), key=logits.__getitem__)
+        token = max(range(len(logits)), key=lambda each: (logits[each], each))
01.2 warm_up_runs_do_not_count: measures from the first run
-    for _ in range(warmup):
-        run()
     seconds = []
-    for _ in range(repeats):
+    for _ in range(warmup + repeats):
01.2 warm_up_runs_do_not_count: takes the warm-up out of the repeats
-    for _ in range(repeats):
+    for _ in range(repeats - warmup):
01.2 one_slow_run_changes_little: returns the mean
-    return {"median": median(seconds), "low": low, "high": high}
+    return {"median": sum(seconds) / len(seconds), "low": low, "high": high}
01.2 quartiles_interpolate: returns the extremes
-    low, _, high = quantiles(seconds, n=4, method="inclusive")
+    low, high = min(seconds), max(seconds)
01.2 quartiles_interpolate: extrapolates quartiles, as quantiles() does by default
-    low, _, high = quantiles(seconds, n=4, method="inclusive")
+    low, _, high = quantiles(seconds, n=4)
01.2 only_the_work_is_timed: starts each run at the end of the last
     seconds = []
+    began = clock()
@@
-        began = clock()
         run()
-        seconds.append(clock() - began)
+        ended = clock()
+        seconds.append(ended - began)
+        began = ended
01.2 each_run_has_its_own_time: divides the total
+    seconds = [sum(seconds) / repeats] * repeats
     low, _, high = quantiles(seconds, n=4, method="inclusive")
01.2 a_single_repeat_is_refused: notices only after the runs
-    if repeats < 2:
-        raise ValueError(f"repeats is {repeats}; at least 2 are needed to see a spread")
@@
     low, _, high = quantiles(seconds, n=4, method="inclusive")
+    if repeats < 2:
+        raise ValueError(f"repeats is {repeats}")
01.3 first_token_is_the_first_pass: takes the mean of all passes
-    first, later = step_seconds[0], step_seconds[1:]
+    first, later = sum(step_seconds) / len(step_seconds), step_seconds[1:]
01.3 later_tokens_exclude_the_first: divides everything by the number of tokens
-    first, later = step_seconds[0], step_seconds[1:]
+    first, later = step_seconds[0], step_seconds
@@
-    for length, seconds in enumerate(later, start=prompt_len + 1):
+    for length, seconds in enumerate(later[1:], start=prompt_len + 1):
01.3 later_tokens_exclude_the_first: n gaps for n tokens
-    return {"ttft": first, "tpot": sum(later) / len(later) if later else None, "again": again}
+    tpot = sum(later) / len(step_seconds) if later else None
+    return {"ttft": first, "tpot": tpot, "again": again}
01.3 one_token_has_no_gap: a perfect zero for a single token
-    return {"ttft": first, "tpot": sum(later) / len(later) if later else None, "again": again}
+    return {"ttft": first, "tpot": sum(later) / len(later) if later else 0.0, "again": again}
01.3 the_newest_token_is_not_repeated: counts later passes as a whole
-        again += seconds * (length - 1) / length
+        again += seconds
01.3 the_newest_token_is_not_repeated: counts only the prompt as repeated
-        again += seconds * (length - 1) / length
+        again += seconds * prompt_len / length / 2
01.3 repeated_time_adds_up: forgets generated tokens
-        again += seconds * (length - 1) / length
+        again += seconds * prompt_len / length
"""
