"""Plausible wrong solutions of lesson 05."""

MUTANTS = """
05.1 rows_are_as_wide_as_the_longest: pads to the first sequence
-    width = max(map(len, sequences), default=0)
+    width = len(sequences[0]) if sequences else 0
05.1 rows_are_as_wide_as_the_longest: rounds the width up to a multiple of 8
-    width = max(map(len, sequences), default=0)
+    width = -(-max(map(len, sequences), default=0) // 8) * 8
05.1 padding_is_on_its_side: swaps the sides
-        before, after = (gap, 0) if side == "left" else (0, gap)
+        before, after = (0, gap) if side == "left" else (gap, 0)
05.1 own_pad_tokens_stay_visible: takes the mask from the ids
-        mask.append([False] * before + [True] * len(sequence) + [False] * after)
+        mask.append([token != pad_id for token in ids[-1]])
05.1 the_mask_marks_own_tokens: marks the padding, as masked_fill expects it
-        mask.append([False] * before + [True] * len(sequence) + [False] * after)
+        mask.append([True] * before + [False] * len(sequence) + [True] * after)
05.1 positions_begin_at_the_first_own_token: counts from the edge of the rectangle
-        positions.append([0] * before + list(range(len(sequence))) + [0] * after)
+        positions.append(list(range(width)))
05.1 an_unknown_side_is_refused: takes every other side for the right one
-    if side not in ("left", "right"):
-        raise ValueError(f"side {side!r} is unknown; use left or right")
05.1 an_empty_batch_is_empty: asks for the longest of nothing
-    width = max(map(len, sequences), default=0)
+    width = max(map(len, sequences))
05.1 arguments_stay: pads in place
-        ids.append([pad_id] * before + list(sequence) + [pad_id] * after)
+        sequence[:] = [pad_id] * before + list(sequence) + [pad_id] * after
+        ids.append(list(sequence))
05.2 prompts_form_a_rectangle: reports the rectangle instead of its padding
-        "prefill_padded": rows * max(prompt_lens, default=0) - prefill_used,
+        "prefill_padded": rows * max(prompt_lens, default=0),
05.2 prompts_form_a_rectangle: rounds the mean instead of taking the longest
-        "prefill_padded": rows * max(prompt_lens, default=0) - prefill_used,
+        "prefill_padded": rows * round(prefill_used / max(rows, 1)) - prefill_used,
05.2 the_first_token_comes_from_the_prefill: computes a position for every output token
-    prefill_used, decode_used = sum(prompt_lens), sum(output_lens) - rows
-    decode_steps = max(output_lens, default=1) - 1
+    prefill_used, decode_used = sum(prompt_lens), sum(output_lens)
+    decode_steps = max(output_lens, default=0)
05.2 the_batch_lasts_as_long_as_its_longest_output: removes rows that are complete
-        "decode_padded": rows * decode_steps - decode_used,
+        "decode_padded": 0,
05.2 the_batch_lasts_as_long_as_its_longest_output: forgets that the prefill gave a token, for the steps only
-    decode_steps = max(output_lens, default=1) - 1
+    decode_steps = max(output_lens, default=1)
05.2 different_lists_are_refused: trusts the caller
-    if len(prompt_lens) != len(output_lens):
-        raise ValueError(f"{len(prompt_lens)} prompts and {len(output_lens)} outputs")
05.2 an_empty_batch_costs_nothing: asks for the longest of nothing
-    decode_steps = max(output_lens, default=1) - 1
+    decode_steps = max(output_lens) - 1
05.2 random_batches_agree: takes the row with the longest prompt for the one with the longest output
-    decode_steps = max(output_lens, default=1) - 1
+    decode_steps = (output_lens[prompt_lens.index(max(prompt_lens))] if rows else 1) - 1
05.3 starts_are_running_sums: leaves out the first 0
-    query_start_loc = list(accumulate(lens, initial=0))
+    query_start_loc = list(accumulate(lens))
05.3 starts_are_running_sums: leaves out the end of the last row
-    query_start_loc = list(accumulate(lens, initial=0))
+    query_start_loc = list(accumulate(lens, initial=0))[:-1]
05.3 starts_are_running_sums: gives the lengths
-    query_start_loc = list(accumulate(lens, initial=0))
+    query_start_loc = [0, *lens]
05.3 positions_restart_in_every_row: numbers the tokens of the step
-    positions = [start + offset for start, count in zip(starts, lens, strict=True) for offset in range(count)]
+    positions = list(range(sum(lens)))
05.3 positions_go_on_after_computed_tokens: starts every row at 0
-    positions = [start + offset for start, count in zip(starts, lens, strict=True) for offset in range(count)]
+    positions = [offset for count in lens for offset in range(count)]
05.3 positions_go_on_after_computed_tokens: repeats the last computed position
-    positions = [start + offset for start, count in zip(starts, lens, strict=True) for offset in range(count)]
+    positions = [max(start - 1, 0) + offset for start, count in zip(starts, lens) for offset in range(count)]
05.3 each_token_knows_its_row: counts rows from 1
-    row_of_token = [row for row, count in enumerate(lens) for _ in range(count)]
+    row_of_token = [row for row, count in enumerate(lens, 1) for _ in range(count)]
05.3 rows_may_be_empty: drops rows without tokens
     query_start_loc = list(accumulate(lens, initial=0))
+    lens = [count for count in lens if count]
+    query_start_loc = list(accumulate(lens, initial=0))
+    starts = list(starts)[: len(lens)]
05.3 lengths_and_starts_must_match: stops at the shorter list
-    if len(lens) != len(starts):
-        raise ValueError(f"{len(lens)} lengths and {len(starts)} starts")
@@
-    positions = [start + offset for start, count in zip(starts, lens, strict=True) for offset in range(count)]
+    positions = [start + offset for start, count in zip(starts, lens) for offset in range(count)]
"""
