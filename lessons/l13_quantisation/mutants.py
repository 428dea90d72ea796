"""Plausible wrong solutions of lesson 13."""

MUTANTS = """
13.1 scales_are_the_groups_own: one scale for a whole row
-    scales = (groups.abs().amax(-1) / largest).half()
+    scales = (groups.abs().amax((-1, -2), keepdim=True)[..., 0] / largest).half().expand(groups.shape[:2])
13.1 scales_are_the_groups_own: forgets that the largest weight may be negative
-    scales = (groups.abs().amax(-1) / largest).half()
+    scales = (groups.amax(-1) / largest).half()
13.1 steps_are_the_nearest: cuts off instead of rounding
-    steps = (groups / scales.float()[..., None]).round().clamp(-largest, largest)
+    steps = (groups / scales.float()[..., None]).trunc().clamp(-largest, largest)
13.1 steps_fit_the_stored_scale: chooses the steps before the scale is rounded to fp16
-    scales = (groups.abs().amax(-1) / largest).half()
-    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
-    steps = (groups / scales.float()[..., None]).round().clamp(-largest, largest)
+    exact = groups.abs().amax(-1) / largest
+    exact = torch.where(exact == 0, torch.ones_like(exact), exact)
+    scales = exact.half()
+    steps = (groups / exact[..., None]).round().clamp(-largest, largest)
13.1 a_group_of_zeros_stays_zero: divides zero by zero
-    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
13.1 dequantize_restores: takes the scale of the first group for the whole row
-    return (groups * scales.float()[..., None]).reshape(rows, columns)
+    return (groups * scales.float()[:, :1, None]).reshape(rows, columns)
13.1 impossible_sizes_are_refused: leaves the check of the group to reshape
-    if group_size < 1 or columns % group_size:
-        raise ValueError(f"group_size {group_size} does not divide {columns} columns")
13.2 bytes_hold_two_values: puts the even column into the high bits
-    return nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)
+    return nibbles[:, 1::2] | (nibbles[:, 0::2] << 4)
13.2 bytes_hold_two_values: pairs the halves of a row instead of neighbours
-    return nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)
+    half = nibbles.shape[1] // 2
+    return nibbles[:, :half] | (nibbles[:, half:] << 4)
13.2 unpack_reads_the_layout: forgets to take the 8 away
-    return nibbles.to(torch.int8) - 8
+    return nibbles.to(torch.int8)
13.2 unpack_reads_the_layout: joins low and high nibbles side by side
-    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
+    nibbles = torch.cat((packed & 15, packed >> 4), dim=1)
13.2 the_argument_is_not_changed: adds the 8 in place
-    nibbles = (q + 8).to(torch.uint8)
+    nibbles = q.add_(8).to(torch.uint8)
13.2 odd_columns_are_refused: pads a missing column without a word
-        raise ValueError(f"{q.shape[1]} columns do not fill whole bytes")
+        q = torch.cat((q, torch.zeros_like(q[:, :1])), dim=1)
13.3 every_token_and_head_has_a_scale: one scale for all heads of a token
-    scales = x.float().abs().amax(-1) / 127
+    scales = (x.float().abs().amax((-1, -2), keepdim=True)[..., 0] / 127).expand(x.shape[:2])
13.3 kv_error_is_at_most_half_a_step: rounds down
-    return steps.round().clamp(-127, 127).to(torch.int8), scales
+    return steps.floor().clamp(-127, 127).to(torch.int8), scales
13.3 zeros_stay_zero: gives zeros the scale 1
-    return steps.round().clamp(-127, 127).to(torch.int8), scales
+    return steps.round().clamp(-127, 127).to(torch.int8), torch.where(scales == 0, torch.ones_like(scales), scales)
13.3 a_loud_token_disturbs_no_other: one scale per head for all tokens
-    scales = x.float().abs().amax(-1) / 127
+    scales = (x.float().abs().amax((0, -1)) / 127).expand(x.shape[:2])
13.3 bytes_count_the_scales: forgets the scales
-    return 2 * num_layers * num_kv_heads * (head_dim + 4)
+    return 2 * num_layers * num_kv_heads * head_dim
13.3 bytes_count_the_scales: counts one scale for keys and values together
-    return 2 * num_layers * num_kv_heads * (head_dim + 4)
+    return num_layers * num_kv_heads * (2 * head_dim + 4)
13.1 error_is_at_most_half_a_step: leaves the outermost step unused
-    steps = (groups / scales.float()[..., None]).round().clamp(-largest, largest)
+    steps = (groups / scales.float()[..., None]).round().clamp(1 - largest, largest - 1)
13.2 the_round_trip_is_exact: takes the lowest value for one outside of the grid
-    return nibbles.to(torch.int8) - 8
+    return (nibbles.to(torch.int8) - 8).clamp_min(-7)
"""
