"""Plausible wrong kernels, each with the check that must catch it."""

MUTANTS = """
cpp-paged-decode softmax_over_one_block: the scale is forgotten
-                scores[part] = dots(query + g * dim, chunk.keys + part * LANES, dim) * scale;
+                scores[part] = dots(query + g * dim, chunk.keys + part * LANES, dim);
cpp-paged-decode softmax_over_one_block: never divided by the mass
-        for (int i = 0; i < shape.head_dim; i++) out[g * shape.head_dim + i] = group.out[g][i] / mass;
+        for (int i = 0; i < shape.head_dim; i++) out[g * shape.head_dim + i] = group.out[g][i];
cpp-paged-decode softmax_over_one_block: the mass of one lane
-        for (int lane = 0; lane < LANES; lane++) sum += mass[g][lane];
+        for (int lane = 0; lane < 1; lane++) sum += mass[g][lane];
cpp-paged-decode tokens_follow_the_table: blocks in order of their ids
-            const long block = table[column];
+            const long block = table[0] + column;
cpp-paged-decode tokens_follow_the_table: the output is not rescaled
-        for (int i = 0; i < dim; i++) out[g][i] *= shrink;
cpp-paged-decode tokens_follow_the_table: the mass is not rescaled
-        mass[g] *= shrink;
cpp-paged-decode the_last_block_is_cut: the last block is filled up with the last key
-                scores[part] = select(LANE + part * LANES < chunk.count, scores[part], splat(-INFINITY));
+                scores[part] = select(LANE + part * LANES < (chunk.count + 3) / 4 * 4, scores[part], splat(-INFINITY));
cpp-paged-decode every_row_has_its_own_table: the first row's table
-            ATTEND[count - 1](query + at, kv, table + long(row) * max_blocks, begin, end, head / group, out + at,
+            ATTEND[count - 1](query + at, kv, table, begin, end, head / group, out + at,
cpp-paged-decode heads_of_a_group_share_keys: heads are interleaved
-            ATTEND[count - 1](query + at, kv, table + long(row) * max_blocks, begin, end, head / group, out + at,
+            ATTEND[count - 1](query + at, kv, table + long(row) * max_blocks, begin, end, head % kv_heads, out + at,
cpp-paged-decode large_scores: no maximum is taken off
-        if (candidate <= peak[g]) return;
+        peak[g] = 0;
+        if (candidate != 0) return;
cpp-paged-decode large_scores: only the first chunk's maximum
-        if (candidate <= peak[g]) return;
+        if (peak[g] > -INFINITY) return;
cpp-paged-decode a_window_hides_old_tokens: one token too many
-        const int end = seq_lens[row], begin = window ? std::max(0, end - window) : 0;
+        const int end = seq_lens[row], begin = window ? std::max(0, end - window - 1) : 0;
cpp-paged-decode a_window_hides_old_tokens: whole blocks of the window
-        const int end = seq_lens[row], begin = window ? std::max(0, end - window) : 0;
+        const int end = seq_lens[row], begin = window ? std::max(0, end - window) / block_size * block_size : 0;
cpp-paged-decode any_head_size: whole vectors only
-        for (int t = 0; t < LANES; t++) all[t] += query[i] * keys[t][i];
+        all[0] += query[i] * keys[0][i];
cuda-paged-decode softmax_over_one_block: the scale is forgotten
-    for (int part = 0; part < MAX_PARTS; ++part) q[part] = part < parts ? query[part * WARP + lane] * scale : 0.0f;
+    for (int part = 0; part < MAX_PARTS; ++part) q[part] = part < parts ? query[part * WARP + lane] : 0.0f;
cuda-paged-decode softmax_over_one_block: partial dot products
-        score = warp_sum(score);
+        warp_sum(score);
cuda-paged-decode one_token_is_its_value: a warp without keys gives NaN
-    for (int w = 0; w < WARPS; ++w) mass += masses[w] * expf(peaks[w] - peak);
+    for (int w = 0; w < WARPS; ++w) mass += masses[w] * expf(peaks[w] - peaks[w]) * expf(peaks[w] - peak);
cuda-paged-decode softmax_over_one_block: only the first warp's output
-        for (int w = 0; w < WARPS; ++w) sum += outs[w][i] * expf(peaks[w] - peak);
+        for (int w = 0; w < 1; ++w) sum += outs[w][i] * expf(peaks[w] - peak);
cuda-paged-decode large_scores: warps are merged without their maxima
-        for (int w = 0; w < WARPS; ++w) sum += outs[w][i] * expf(peaks[w] - peak);
+        for (int w = 0; w < WARPS; ++w) sum += outs[w][i];
cuda-paged-decode tokens_follow_the_table: the output is not rescaled
-            if (part < parts) o[part] = o[part] * shrink + weight * value[part * WARP + lane];
+            if (part < parts) o[part] = o[part] + weight * value[part * WARP + lane];
cuda-paged-decode heads_of_a_group_share_keys: heads are interleaved
-    const int kv_head = head / (heads / kv_heads), parts = head_dim / WARP;
+    const int kv_head = head % kv_heads, parts = head_dim / WARP;
cuda-paged-decode a_window_hides_old_tokens: one token too few
-    const int end = seq_lens[row], begin = window && end > window ? end - window : 0;
+    const int end = seq_lens[row], begin = window && end > window ? end - window + 1 : 0;
cuda-paged-decode other_sizes: the first 32 numbers only
-    const int kv_head = head / (heads / kv_heads), parts = head_dim / WARP;
+    const int kv_head = head / (heads / kv_heads), parts = 1;
cuda-paged-decode threads_run_in_any_order: no barrier before the merge
-    __syncthreads();
+    if (head_dim == 0) __syncthreads();
triton-paged-decode softmax_over_one_block: the scale is forgotten
-    q = tl.load(query + at) * scale
+    q = tl.load(query + at)
triton-paged-decode the_last_block_is_cut: hidden scores are 0
-        scores = tl.where(seen, tl.sum(keys * q[None, :], axis=1), -float("inf"))
+        scores = tl.sum(keys * q[None, :], axis=1)
triton-paged-decode tokens_follow_the_table: the output is not rescaled
-        mixed = mixed * shrink + tl.sum(weights[:, None] * values, axis=0)
+        mixed = mixed + tl.sum(weights[:, None] * values, axis=0)
triton-paged-decode heads_of_a_group_share_keys: heads are interleaved
-        page = kv + (block * 2 * KV_HEADS + head // (HEADS // KV_HEADS)) * BLOCK * DIM
+        page = kv + (block * 2 * KV_HEADS + head % KV_HEADS) * BLOCK * DIM
triton-paged-decode a_window_hides_old_tokens: whole blocks of the window
-        seen = (position >= begin) & (position < end)
+        seen = position < end
triton-paged-decode large_scores: no maximum is taken off
-        larger = tl.maximum(peak, tl.max(scores, axis=0))
-        shrink, weights = tl.exp(peak - larger), tl.exp(scores - larger)
+        larger = peak
+        shrink, weights = 1.0, tl.exp(scores)
cpp-paged-decode it_stays_inside_its_arrays: reads the length of the next row
+        const volatile int next = seq_lens[row + 1];
+        (void)next;
         const int end = seq_lens[row], begin = window ? std::max(0, end - window) : 0;
cpp-paged-decode it_stays_inside_its_arrays: a scratch array for each row, never freed
         const int end = seq_lens[row], begin = window ? std::max(0, end - window) : 0;
+        static float* volatile scratch;
+        scratch = new float[end + 16];
cuda-paged-decode it_stays_inside_its_arrays: reads the length of the next row
+    const volatile int next = seq_lens[row + 1];
+    (void)next;
     const int end = seq_lens[row], begin = window && end > window ? end - window : 0;
cuda-paged-decode no_two_threads_race: four warps add to the output without an atomic
-    for (int i = threadIdx.x; i < head_dim; i += THREADS) {
-        float sum = 0;
-        for (int w = 0; w < WARPS; ++w) sum += outs[w][i] * expf(peaks[w] - peak);
-        out[(int64_t(row) * heads + head) * head_dim + i] = sum / mass;
-    }
+    float* to = out + (int64_t(row) * heads + head) * head_dim;
+    for (int i = threadIdx.x; i < head_dim; i += THREADS) to[i] = 0;
+    __syncthreads();
+    for (int i = lane; i < head_dim; i += WARP) to[i] += outs[warp][i] * expf(peaks[warp] - peak) / mass;
cuda-paged-decode the_threads_share_the_work: one warp does all keys
-    for (int token = begin + warp; token < end; token += WARPS) {
+    for (int token = warp ? end : begin; token < end; ++token) {
triton-paged-decode it_stays_inside_its_tensors: the length of the next row is loaded
-    end = tl.load(seq_lens + row)
+    end = tl.load(seq_lens + row) + 0 * tl.load(seq_lens + row + 1)
triton-paged-decode the_kernels_store_the_result: torch makes the tensor that is returned
-    return out
+    return out * 1.0
cpp-paged-decode random_batches: the last of three rows is left out
-    for (int row = 0; row < rows; row++) {
+    for (int row = 0; row < rows - (rows == 3); row++) {
triton-paged-decode softmax_over_one_block: weights are rounded to halves
-        mixed = mixed * shrink + tl.sum(weights[:, None] * values, axis=0)
+        mixed = mixed * shrink + tl.sum(weights.to(tl.float16).to(tl.float32)[:, None] * values, axis=0)
triton-paged-decode one_token_is_its_value: the heads of a row are one vector
-    return out
+    return out.flatten(1)
"""
