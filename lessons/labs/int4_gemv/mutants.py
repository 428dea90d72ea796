"""Plausible wrong kernels, each with the check that must catch it."""

MUTANTS = """
cpp-int4-gemv the_low_half_of_a_byte_comes_first: the high half comes first
-                step.x[i][lane] = at < words ? x[at * NIBBLES + i] * (i < NIBBLES - 1 ? power : 1) : 0;
+                step.x[i][lane] = at < words ? x[at * NIBBLES + (i ^ 1)] * (i < NIBBLES - 1 ? power : 1) : 0;
cpp-int4-gemv the_low_half_of_a_byte_comes_first: the first four columns in the low halves
-                step.x[i][lane] = at < words ? x[at * NIBBLES + i] * (i < NIBBLES - 1 ? power : 1) : 0;
+                step.x[i][lane] = at < words ? x[at * NIBBLES + i / 2 + i % 2 * 4] * (i < NIBBLES - 1 ? power : 1) : 0;
cpp-int4-gemv nibbles_have_no_sign: the last nibble of a word is signed
-    return sum + __builtin_convertvector((vint)(words >> 28), vfloat) * step.x[NIBBLES - 1];  // no sign bit
+    return sum + __builtin_convertvector((vint)words >> 28, vfloat) * step.x[NIBBLES - 1];
cpp-int4-gemv one_group_by_the_definition: no zero point
-        out[row] = -offsets[row];
+        out[row] = 0;
cpp-int4-gemv one_group_by_the_definition: the zero point is not scaled
-            offsets[row] += scale[row * x.groups + group] * zero[row * x.groups + group] * x.sums[group];
+            offsets[row] += zero[row * x.groups + group] * x.sums[group];
cpp-int4-gemv each_group_has_its_own_scale: a step has the scale of its first group
-            sums[row] += products(words, step) * permuted(factor, step.group);
+            sums[row] += products(words, step) * factor[0];
cpp-int4-gemv each_group_has_its_own_zero_point: the sum of x over all groups
-            for (int k = group * group_size; k < (group + 1) * group_size; k++) sums[group] += x[k];
+            for (int k = 0; k < columns; k++) sums[group] += x[k];
cpp-int4-gemv rows_of_any_number: whole panels of rows only
-        count = rows - row >= ROWS ? ROWS : 1;
+        count = ROWS;
cpp-int4-gemv rows_of_any_number: rows share the zero points of the first
-            offsets[row] += scale[row * x.groups + group] * zero[row * x.groups + group] * x.sums[group];
+            offsets[row] += scale[row * x.groups + group] * zero[group] * x.sums[group];
cpp-int4-gemv groups_of_many_sizes: whole vectors only
-    if (whole * LANES < x.words)
+    if (x.words < LANES)
cpp-int4-gemv groups_that_are_no_power_of_two: lanes count groups from the start of a step
-            step.group[lane] = group - step.first_group;
+            step.group[lane] = lane / words_of_group;
cuda-int4-gemv the_low_half_of_a_byte_comes_first: columns 0 to 3 in the low halves, 4 to 7 in the high ones
-            dot += first.at[i] * (float(word >> 4 * i & 15) - offset);
-            dot += second.at[i] * (float(word >> (4 * i + 16) & 15) - offset);
+            dot += first.at[i] * (float(word >> 8 * i & 15) - offset);
+            dot += second.at[i] * (float(word >> (8 * i + 4) & 15) - offset);
cuda-int4-gemv nibbles_have_no_sign: nibbles from -8 to 7
-            dot += first.at[i] * (float(word >> 4 * i & 15) - offset);
+            dot += first.at[i] * (float(int(word << (28 - 4 * i)) >> 28) - offset);
cuda-int4-gemv each_group_has_its_own_scale: the scale of the group before
-        sum += dot * scale[group];
+        sum += dot * scale[group > 0 ? group - 1 : 0];
cuda-int4-gemv each_group_has_its_own_zero_point: the first group's zero point
-        const float offset = zero[group];
+        const float offset = zero[0];
cuda-int4-gemv rows_of_any_number: no guard for the last block
-    if (row >= rows) return;  // the whole warp
cuda-int4-gemv rows_of_any_number: a row for each block
-    const int row = blockIdx.x * WARPS + warp_id(), groups = columns / group_size;
+    const int row = blockIdx.x, groups = columns / group_size;
cuda-int4-gemv groups_of_many_sizes: lanes without columns leave before the sum
+    if (lane_id() * COLUMNS >= columns) return;
     float sum = 0;
cuda-int4-gemv long_rows: one word for each lane
-    for (int column = lane_id() * COLUMNS; column < columns; column += WARP * COLUMNS) {
+    for (int column = lane_id() * COLUMNS; column < min(columns, WARP * COLUMNS); column += WARP * COLUMNS) {
triton-int4-gemv the_low_half_of_a_byte_comes_first: the high half comes first
-        dots = tl.sum(low * even + high * odd, axis=1)
+        dots = tl.sum(high * even + low * odd, axis=1)
triton-int4-gemv one_group_by_the_definition: no zero point
-        low, high = (pairs & 15).to(tl.float32) - offset, (pairs >> 4).to(tl.float32) - offset
+        low, high = (pairs & 15).to(tl.float32), (pairs >> 4).to(tl.float32)
triton-int4-gemv nibbles_have_no_sign: bytes are signed
-        low, high = (pairs & 15).to(tl.float32) - offset, (pairs >> 4).to(tl.float32) - offset
+        low, high = (pairs & 15).to(tl.float32) - offset, (pairs.to(tl.int8) >> 4).to(tl.float32) - offset
triton-int4-gemv nibbles_have_no_sign: the difference is taken in a byte
-        low, high = (pairs & 15).to(tl.float32) - offset, (pairs >> 4).to(tl.float32) - offset
+        byte_zero = offset.to(tl.uint8)
+        low, high = ((pairs & 15) - byte_zero).to(tl.float32), ((pairs >> 4) - byte_zero).to(tl.float32)
triton-int4-gemv each_group_has_its_own_scale: the first group's scale
-        sums += dots * tl.load(scale + row * groups + group, mask=real, other=0.0)
+        sums += dots * tl.load(scale + row * groups, mask=real, other=0.0)
triton-int4-gemv rows_of_any_number: the first block of rows only
-    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
+    row = tl.arange(0, ROWS)
triton-int4-gemv groups_of_many_sizes: the last group is left out
-    for group in range(groups):
+    for group in range(tl.maximum(groups - 1, 1)):
cpp-int4-gemv it_stays_inside_its_arrays: the last vector of a row is loaded whole
-            std::memcpy(&last, from, (x.words - whole * LANES) * sizeof(uint32_t));
+            std::memcpy(&last, from, sizeof last);
cpp-int4-gemv it_stays_inside_its_arrays: the factors are never freed
-    std::vector<float> factors(ROWS * (groups + LANES));
+    static float* volatile factors;
+    factors = new float[ROWS * (groups + LANES)]();
@@
-             out + row, factors.data());
+             out + row, factors);
cuda-int4-gemv it_stays_inside_its_arrays: reads the number behind the last of x
+    const volatile float next = x[columns];
+    (void)next;
     float sum = 0;
cuda-int4-gemv no_two_threads_race: the lanes add to one number without an atomic
-    sum = reduce_lanes<WARP>(sum, Sum());
-    if (lane_id() == 0) out[row] = sum;
+    if (lane_id() == 0) out[row] = 0;
+    __syncwarp();
+    out[row] += sum;
cuda-int4-gemv the_threads_share_the_work: one lane of a warp works
-    for (int column = lane_id() * COLUMNS; column < columns; column += WARP * COLUMNS) {
+    for (int column = lane_id() ? columns : 0; column < columns; column += COLUMNS) {
triton-int4-gemv it_stays_inside_its_tensors: scales of rows that are not there are loaded
-        sums += dots * tl.load(scale + row * groups + group, mask=real, other=0.0)
+        sums += dots * tl.load(scale + row * groups + group)
triton-int4-gemv the_kernels_store_the_result: torch computes, and no kernel runs
-    out = torch.empty(rows, device=x.device)
-    # one warp: with groups of 128 each lane loads 8 bytes
-    _int4_gemv[(triton.cdiv(rows, 4),)](
-        x, qweight, scale, zero, out, rows, groups, GROUP_SIZE=group_size, ROWS=4, num_warps=1,
-    )  # fmt: skip
-    return out
+    nibbles = torch.stack([qweight & 15, qweight >> 4], -1).view(rows, groups, group_size).double()
+    weights = (nibbles - zero[:, :, None]) * scale[:, :, None]
+    return (weights.view(rows, -1) @ x.double()).float()
cpp-int4-gemv random_matrices: the last of 11 to 16 rows is left out
+    rows -= rows > 10 && rows < 17;
     for (int row = 0, count; row < rows; row += count) {
triton-int4-gemv one_group_by_the_definition: the sum is kept in a half
         sums += dots * tl.load(scale + row * groups + group, mask=real, other=0.0)
+        sums = sums.to(tl.float16).to(tl.float32)
triton-int4-gemv one_group_by_the_definition: a column is returned
-    return out
+    return out[:, None]
triton-int4-gemv long_rows: outliers of x are clipped at 1,000
-        even = tl.load(x + group * GROUP_SIZE + 2 * byte)[None, :]
+        even = tl.minimum(tl.load(x + group * GROUP_SIZE + 2 * byte), 1000.0)[None, :]
"""
