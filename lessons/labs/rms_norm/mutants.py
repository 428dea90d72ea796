"""Plausible wrong kernels, each with the check that must catch it."""

MUTANTS = """
cpp-rms-norm a_row_by_the_definition: the residual is forgotten
-            const float both = x[start + i] + residual[start + i];
+            const float both = x[start + i];
cpp-rms-norm a_row_by_the_definition: total is not stored
-            total[start + i] = both;
             squares += both * both;
cpp-rms-norm a_row_by_the_definition: the mean is not squared
-            squares += both * both;
+            squares += both;
cpp-rms-norm each_row_has_its_own_scale: the sum runs on
-        float squares = 0;  // the second loop finds the row in the first-level cache
+        static float squares;
+        if (row == 0) squares = 0;
cpp-rms-norm any_hidden_size: whole vectors only
-        for (int i = 0; i < hidden; i++) out[start + i] = total[start + i] * scale * weight[i];
+        for (int i = 0; i < hidden / 8 * 8; i++) out[start + i] = total[start + i] * scale * weight[i];
cpp-rms-norm any_hidden_size: one vector too many
-        for (int i = 0; i < hidden; i++) out[start + i] = total[start + i] * scale * weight[i];
+        for (int i = 0; i < (hidden + 7) / 8 * 8; i++) out[start + i] = total[start + i] * scale * weight[i];
cpp-rms-norm eps_is_inside_the_root: eps behind the root
-        const float scale = 1.0f / std::sqrt(squares / hidden + eps);
+        const float scale = 1.0f / (std::sqrt(squares / hidden) + eps);
cpp-rms-norm the_mean_is_over_the_row: a sum and no mean
-        const float scale = 1.0f / std::sqrt(squares / hidden + eps);
+        const float scale = 1.0f / std::sqrt(squares / 128 + eps);
cpp-rms-norm large_and_small_numbers: the sum is kept in a half
-        float squares = 0;  // the second loop finds the row in the first-level cache
+        _Float16 squares = 0;
cuda-rms-norm a_row_by_the_definition: the residual is forgotten
-        const float both = x[start + column] + residual[start + column];
+        const float both = x[start + column];
cuda-rms-norm a_row_by_the_definition: only one warp is added up
-    for (int warp = 0; warp < THREADS / WARP; ++warp) sum += sums[warp];
+    for (int warp = 0; warp < 1; ++warp) sum += sums[warp];
cuda-rms-norm a_row_by_the_definition: the shuffle stops at distance 2
-    for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
+    for (int distance = WARP / 2; distance > 1; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
cuda-rms-norm any_hidden_size: a column for each thread, no loop
-    for (int column = threadIdx.x; column < hidden; column += THREADS) {
+    for (int column = threadIdx.x; column < hidden && column < THREADS; column += THREADS) {
cuda-rms-norm any_hidden_size: whole warps only
-    for (int column = threadIdx.x; column < hidden; column += THREADS)
+    for (int column = threadIdx.x; column < hidden / WARP * WARP; column += THREADS)
         out[start + column] = total[start + column] * scale * weight[column];
cuda-rms-norm the_mean_is_over_the_row: divided by the threads
-    const float scale = rsqrtf(block_sum(squares) / hidden + eps);
+    const float scale = rsqrtf(block_sum(squares) / THREADS + eps);
cuda-rms-norm eps_is_inside_the_root: eps behind the root
-    const float scale = rsqrtf(block_sum(squares) / hidden + eps);
+    const float scale = 1.0f / (sqrtf(block_sum(squares) / hidden) + eps);
triton-rms-norm a_row_by_the_definition: the residual is forgotten
-    both = tl.load(x + at, mask=inside, other=0.0) + tl.load(residual + at, mask=inside, other=0.0)
+    both = tl.load(x + at, mask=inside, other=0.0)
triton-rms-norm any_hidden_size: what is masked counts
-    both = tl.load(x + at, mask=inside, other=0.0) + tl.load(residual + at, mask=inside, other=0.0)
+    both = tl.load(x + at, mask=inside, other=1.0) + tl.load(residual + at, mask=inside, other=0.0)
triton-rms-norm any_hidden_size: the mean is over the block
-    scale = 1.0 / tl.sqrt(tl.sum(both * both, axis=0) / hidden + eps)
+    scale = 1.0 / tl.sqrt(tl.sum(both * both, axis=0) / BLOCK + eps)
triton-rms-norm any_hidden_size: half a block
-    block = triton.next_power_of_2(hidden)
+    block = max(1, triton.next_power_of_2(hidden) // 2)
triton-rms-norm eps_is_inside_the_root: eps behind the root
-    scale = 1.0 / tl.sqrt(tl.sum(both * both, axis=0) / hidden + eps)
+    scale = 1.0 / (tl.sqrt(tl.sum(both * both, axis=0) / hidden) + eps)
triton-rms-norm each_row_has_its_own_scale: every program does the first row
-    at = row.to(tl.int64) * hidden + column
+    at = column
cuda-rms-norm threads_run_in_any_order: no barrier
     if (lane_id() == 0) sums[warp_id()] = value;
-    __syncthreads();
cpp-rms-norm it_stays_inside_its_arrays: looks at the number behind the last before it compares the index
-#pragma omp simd
-        for (int i = 0; i < hidden; i++) out[start + i] = total[start + i] * scale * weight[i];
+        for (int i = 0; weight[i] == weight[i] && i < hidden; i++)
+            out[start + i] = total[start + i] * scale * weight[i];
cpp-rms-norm it_stays_inside_its_arrays: looks at the number before the first
         const long start = long(row) * hidden;
+        const volatile float before = x[start - 1];
+        (void)before;
cpp-rms-norm it_stays_inside_its_arrays: a scratch array for each row, never freed
         const long start = long(row) * hidden;
+        static float* volatile scratch;
+        scratch = new float[hidden];
cuda-rms-norm it_stays_inside_its_arrays: reads the weight behind the last
+    const volatile float next = weight[hidden];
+    (void)next;
     float squares = 0;
cuda-rms-norm no_two_threads_race: four warps add to one number without an atomic
-    if (lane_id() == 0) sums[warp_id()] = value;
+    if (threadIdx.x == 0) sums[0] = 0;
     __syncthreads();
-    float sum = 0;
-#pragma unroll
-    for (int warp = 0; warp < THREADS / WARP; ++warp) sum += sums[warp];
-    return sum;
+    if (lane_id() == 0) sums[0] += value;
+    __syncthreads();
+    return sums[0];
cuda-rms-norm the_threads_share_the_work: one thread works
-    for (int column = threadIdx.x; column < hidden; column += THREADS) {
+    for (int column = threadIdx.x ? hidden : 0; column < hidden; ++column) {
@@
-    for (int column = threadIdx.x; column < hidden; column += THREADS)
+    for (int column = threadIdx.x ? hidden : 0; column < hidden; ++column)
         out[start + column] = total[start + column] * scale * weight[column];
cuda-rms-norm the_threads_share_the_work: one warp works
-    for (int column = threadIdx.x; column < hidden; column += THREADS) {
+    for (int column = warp_id() ? hidden : lane_id(); column < hidden; column += WARP) {
@@
-    for (int column = threadIdx.x; column < hidden; column += THREADS)
+    for (int column = warp_id() ? hidden : lane_id(); column < hidden; column += WARP)
         out[start + column] = total[start + column] * scale * weight[column];
triton-rms-norm it_stays_inside_its_tensors: the weight is loaded without a mask
-    tl.store(out + at, both * scale * tl.load(weight + column, mask=inside, other=0.0), mask=inside)
+    tl.store(out + at, both * scale * tl.load(weight + column), mask=inside)
triton-rms-norm it_stays_inside_its_tensors: hidden lanes are taken for zeros
-    both = tl.load(x + at, mask=inside, other=0.0) + tl.load(residual + at, mask=inside, other=0.0)
+    both = tl.load(x + at, mask=inside) + tl.load(residual + at, mask=inside)
triton-rms-norm the_kernels_store_the_result: torch computes, and no kernel runs
-    out, total = torch.empty_like(x), torch.empty_like(x)
-    block = triton.next_power_of_2(hidden)
-    _add_rms_norm[(rows,)](x, residual, weight, out, total, hidden, eps, BLOCK=block)
-    return out, total
+    total = x + residual
+    return total * torch.rsqrt((total * total).mean(1, keepdim=True) + eps) * weight, total
triton-rms-norm the_kernels_store_the_result: torch overwrites what the kernel has stored
-    return out, total
+    return out, x + residual
cpp-rms-norm random_shapes: no more than 20 rows
-    for (int row = 0; row < rows; row++) {
+    for (int row = 0; row < rows && row < 20; row++) {
triton-rms-norm a_row_by_the_definition: out and total change places
-    return out, total
+    return total, out
"""
