"""Plausible wrong solutions of lesson 03."""

MUTANTS = """
03.1 a_small_product_by_hand: counts a multiply-add as one FLOP
-    flops = 2 * rows * inputs * outputs
+    flops = rows * inputs * outputs
03.1 one_row_has_little_work: forgets the weights
-    values = rows * inputs + inputs * outputs + rows * outputs
+    values = rows * inputs + rows * outputs
03.1 narrow_values_raise_it: always counts two bytes
-    return flops / (values * bytes_per_value)
+    return flops / (values * 2)
03.1 all_three_operands_count: takes the rule of thumb, FLOP over bytes of the weights
-    values = rows * inputs + inputs * outputs + rows * outputs
+    values = inputs * outputs
03.1 all_three_operands_count: reads the weights again for every row
-    values = rows * inputs + inputs * outputs + rows * outputs
+    values = rows * (inputs + inputs * outputs + outputs)
03.2 weights_are_counted_by_matrix: forgets that the MLP has a gate
-    layer = hidden * (2 * query + 2 * kv) + 3 * hidden * shape["intermediate_size"]
+    layer = hidden * (2 * query + 2 * kv) + 2 * hidden * shape["intermediate_size"]
03.2 weights_are_counted_by_matrix: forgets the output head
-    weights = layers * layer + shape["vocab_size"] * hidden
+    weights = layers * layer
03.2 weights_are_counted_by_matrix: k and v as wide as q, as without GQA
-    layer = hidden * (2 * query + 2 * kv) + 3 * hidden * shape["intermediate_size"]
+    layer = hidden * 4 * query + 3 * hidden * shape["intermediate_size"]
03.2 weights_are_counted_by_matrix: reads the weights once per request
-        "matrices": (weights * bytes_per_value, 2 * weights * batch),
+        "matrices": (weights * bytes_per_value * batch, 2 * weights * batch),
03.2 every_token_uses_every_weight: work of one request, whatever the batch
-        "matrices": (weights * bytes_per_value, 2 * weights * batch),
+        "matrices": (weights * bytes_per_value, 2 * weights),
03.2 requests_read_their_own_kv: the batch shares one context
-    tokens = batch * context
+    tokens = context
03.2 requests_read_their_own_kv: keys without values
-        "attention": (layers * 2 * kv * bytes_per_value * tokens, layers * 4 * query * tokens),
+        "attention": (layers * kv * bytes_per_value * tokens, layers * 4 * query * tokens),
03.2 requests_read_their_own_kv: one pair of heads per query head
-        "attention": (layers * 2 * kv * bytes_per_value * tokens, layers * 4 * query * tokens),
+        "attention": (layers * 2 * query * bytes_per_value * tokens, layers * 4 * query * tokens),
03.2 every_query_head_attends: FLOP of the KV heads only
-        "attention": (layers * 2 * kv * bytes_per_value * tokens, layers * 4 * query * tokens),
+        "attention": (layers * 2 * kv * bytes_per_value * tokens, layers * 4 * kv * tokens),
03.2 agrees_with_the_simulator: counts the lookup table as read, too
-    weights = layers * layer + shape["vocab_size"] * hidden
+    weights = layers * layer + 2 * shape["vocab_size"] * hidden
03.2 each_part_has_its_own_limit: moving and computing one after the other
-    parts = [max(moved / bytes_per_s, flops / flops_per_s) for moved, flops in work.values()]
+    parts = [moved / bytes_per_s + flops / flops_per_s for moved, flops in work.values()]
03.2 each_part_has_its_own_limit: one limit for the whole step
-    parts = [max(moved / bytes_per_s, flops / flops_per_s) for moved, flops in work.values()]
-    return sum(parts) / num_devices
+    moved, flops = (sum(column) for column in zip(*work.values(), strict=True))
+    return max(moved / bytes_per_s, flops / flops_per_s) / num_devices
03.2 each_part_has_its_own_limit: every device does all the work
-    return sum(parts) / num_devices
+    return sum(parts)
03.3 the_ridge_of_an_h100: forgets that a weight does two FLOP per request
-    return ceil(bytes_per_value * flops_per_s / (2 * bytes_per_s))
+    return ceil(bytes_per_value * flops_per_s / bytes_per_s)
03.3 narrower_weights_move_the_border: takes the ridge in FLOP per byte for the batch
-    return ceil(bytes_per_value * flops_per_s / (2 * bytes_per_s))
+    return ceil(flops_per_s / bytes_per_s)
03.3 the_border_itself_counts: rounds down
-    return ceil(bytes_per_value * flops_per_s / (2 * bytes_per_s))
+    return int(bytes_per_value * flops_per_s / (2 * bytes_per_s))
03.3 the_border_itself_counts: one more than the border
-    return ceil(bytes_per_value * flops_per_s / (2 * bytes_per_s))
+    return int(bytes_per_value * flops_per_s / (2 * bytes_per_s)) + 1
03.3 kv_overtakes_the_weights: compares FLOP
-    return ceil(work_of_one["matrices"][0] / work_of_one["attention"][0])
+    return ceil(work_of_one["matrices"][1] / work_of_one["attention"][1])
03.3 kv_overtakes_the_weights: rounds to the nearest
-    return ceil(work_of_one["matrices"][0] / work_of_one["attention"][0])
+    return max(1, round(work_of_one["matrices"][0] / work_of_one["attention"][0]))
"""
