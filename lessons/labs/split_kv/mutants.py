"""Plausible wrong kernels, each with the check that must catch it."""

MUTANTS = """
cpp-split-kv a_single_split: acc is divided by the mass, as an output
-        if (begin < end) std::copy_n(group.out[g], shape.head_dim, rows.acc + at * shape.head_dim);
+        for (int i = 0; i < shape.head_dim; i++) rows.acc[at * shape.head_dim + i] = group.out[g][i] / group.total(g);
cpp-split-kv each_split_has_its_own_state: each split begins at the first token
-            const int begin = std::max(seen, split * split_size), end = std::min(length, (split + 1) * split_size);
+            const int begin = seen, end = std::min(length, (split + 1) * split_size);
cpp-split-kv splits_without_tokens: empty splits are not written
-        rows.peak[at] = group.peak[g];
-        rows.mass[at] = group.total(g);
+        if (begin < end) rows.peak[at] = group.peak[g];
+        if (begin < end) rows.mass[at] = group.total(g);
cpp-split-kv long_splits: acc is not rescaled
-        for (int i = 0; i < dim; i++) out[g][i] *= shrink;
cpp-split-kv merge_weighs_by_the_largest_peak: each split has the same weight
-            const float weight = std::exp(peak[split] - highest);
+            const float weight = 1;
cpp-split-kv merge_reads_no_empty_split: 0 * NaN
-            if (peak[split] == -INFINITY) continue;
cpp-split-kv merge_reads_no_empty_split: the first empty split ends the row
-            if (peak[split] == -INFINITY) continue;
+            if (peak[split] == -INFINITY) break;
cpp-split-kv merge_of_distant_peaks: measured against the first peak
-        const float highest = *std::max_element(peak, peak + splits);
+        const float highest = peak[0];
cpp-split-kv heads_of_a_group_share_keys: heads are interleaved
-    const long head = long(row) * rows.heads + first_head, kv_head = first_head / (rows.heads / shape.kv_heads);
+    const long head = long(row) * rows.heads + first_head, kv_head = first_head % shape.kv_heads;
cpp-split-kv a_window_begins_within_a_split: splits are counted from the window on
-            const int begin = std::max(seen, split * split_size), end = std::min(length, (split + 1) * split_size);
+            const int begin = seen + split * split_size, end = std::min(length, begin + split_size);
cpp-split-kv the_batch_changes_no_bit: a row is cut into as many parts as the longest has
-    for (int row = 0; row < rows; row++) {
+    for (int row = 0, given = split_size; row < rows; row++) {
+        split_size = rows == 1 ? given : (seq_lens[row] + splits - 1) / splits;
cpp-split-kv any_head_size: whole vectors only
-        for (int t = 0; t < LANES; t++) all[t] += query[i] * keys[t][i];
+        all[0] += query[i] * keys[0][i];
cuda-split-kv a_single_split: only the first warp's peak
-    for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, peaks[w]);  // the split has a key, so it is finite
+    highest = peaks[0];
cuda-split-kv each_split_has_its_own_state: warps begin at the row's first token
-    for (int token = begin + warp; token < end; token += WARPS) {
+    for (int token = seen + warp; token < end; token += WARPS) {
cuda-split-kv splits_without_tokens: empty splits are not written
-        if (threadIdx.x == 0) peak[at] = -INFINITY;
-        if (threadIdx.x == 0) mass[at] = 0;
cuda-split-kv splits_without_tokens: no early return
-    if (begin >= end) {  // the whole block
+    if (false) {
cuda-split-kv merge_of_distant_peaks: measured against the last peak
-    for (int split = 0; split < splits; ++split) highest = fmaxf(highest, peak[split]);
+    for (int split = 0; split < splits; ++split) highest = peak[split];
cuda-split-kv merge_reads_no_empty_split: 0 * NaN
-        if (peak[split] == -INFINITY) continue;
cuda-split-kv a_window_begins_within_a_split: one token too few
-    const int seen = window && seq_lens[row] > window ? seq_lens[row] - window : 0;
+    const int seen = window && seq_lens[row] > window ? seq_lens[row] - window + 1 : 0;
cuda-split-kv threads_run_in_any_order: no barrier before the warps are merged
-    __syncthreads();
+    if (head_dim == 0) __syncthreads();
triton-split-kv a_single_split: acc is divided by the mass, as an output
-    tl.store(acc + place * DIM + column, mixed)
+    tl.store(acc + place * DIM + column, mixed / total)
triton-split-kv each_split_has_its_own_state: whole blocks behind the last token
-        scores = tl.where(seen, tl.sum(keys * q[None, :], axis=1), -float("inf"))
+        scores = tl.sum(keys * q[None, :], axis=1)
triton-split-kv splits_without_tokens: the place of a state counts the splits of a row
-    place = (row * HEADS + head).to(tl.int64) * splits + split
+    place = (row * HEADS + head).to(tl.int64) * tl.cdiv(tl.load(seq_lens + row), split_size) + split
triton-split-kv merge_weighs_by_the_largest_peak: the mass is not weighed
-        total += weight * tl.load(mass + place + split)
+        total += tl.load(mass + place + split)
triton-split-kv merge_reads_no_empty_split: 0 * NaN
-        mixed += weight * tl.load(at, mask=column < tl.where(own > -float("inf"), DIM, 0), other=0.0)
+        mixed += weight * tl.load(at)
triton-split-kv merge_of_distant_peaks: no common maximum
-        weight = tl.exp(own - highest)
+        weight = tl.exp(own)
triton-split-kv a_window_begins_within_a_split: the window is forgotten
-    begin = tl.maximum(split * split_size, tl.where(window > 0, length - window, 0))
+    begin = split * split_size
triton-split-kv large_scores: no maximum is taken off
-        larger = tl.maximum(highest, tl.max(scores, axis=0))
-        shrink, weights = tl.exp(highest - larger), tl.exp(scores - larger)
-        highest = larger
+        shrink, weights = 1.0, tl.exp(scores)
+        highest = 0.0
cpp-split-kv it_stays_inside_its_arrays: reads the length of the next row
+        const volatile int next = seq_lens[row + 1];
+        (void)next;
         const int length = seq_lens[row], seen = window ? std::max(0, length - window) : 0;
cpp-split-kv it_stays_inside_its_arrays: a scratch array for each row, never freed
         const int length = seq_lens[row], seen = window ? std::max(0, length - window) : 0;
+        static float* volatile scratch;
+        scratch = new float[length + 16];
cuda-split-kv it_stays_inside_its_arrays: reads the length of the next row
+    const volatile int next = seq_lens[row + 1];
+    (void)next;
     const int begin = max(seen, split * split_size), end = min(seq_lens[row], (split + 1) * split_size);
cuda-split-kv no_two_threads_race: four warps add to acc without an atomic
-    for (int i = threadIdx.x; i < head_dim; i += THREADS) {
-        float sum = 0;
-        for (int w = 0; w < WARPS; ++w) sum += outs[w][i] * expf(peaks[w] - highest);
-        acc[at * head_dim + i] = sum;
-    }
+    for (int i = threadIdx.x; i < head_dim; i += THREADS) acc[at * head_dim + i] = 0;
+    __syncthreads();
+    for (int i = lane; i < head_dim; i += WARP) acc[at * head_dim + i] += outs[warp][i] * expf(peaks[warp] - highest);
cuda-split-kv the_threads_share_the_work: one warp does all keys of a split
-    for (int token = begin + warp; token < end; token += WARPS) {
+    for (int token = warp ? end : begin; token < end; ++token) {
cuda-split-kv the_threads_share_the_work: one thread merges
-    if (int(threadIdx.x) >= head_dim) return;  // no thread waits for another
+    if (threadIdx.x) return;
+    for (int i = 0; i < head_dim; ++i) {
     float highest = -INFINITY, total = 0, sum = 0;
@@
-        sum += weight * acc[int64_t(split) * head_dim + threadIdx.x];
+        sum += weight * acc[int64_t(split) * head_dim + i];
     }
-    out[head * head_dim + threadIdx.x] = sum / total;
+    out[head * head_dim + i] = sum / total;
+    }
triton-split-kv it_stays_inside_its_tensors: the length of the next row is loaded
-    length = tl.load(seq_lens + row)
+    length = tl.load(seq_lens + row) + 0 * tl.load(seq_lens + row + 1)
triton-split-kv the_kernels_store_the_result: torch merges
-    out = torch.empty(rows, heads, dim, device=acc.device)
-    _merge_splits[(rows, heads)](peak, mass, acc, out, splits, HEADS=heads, DIM=dim)
-    return out
+    weight = torch.exp(peak - peak.max(-1, keepdim=True).values)[..., None]
+    return (weight * acc.nan_to_num()).sum(2) / (weight * mass[..., None]).sum(2)
cpp-split-kv random_batches: a split of 64 tokens loses its first
-            const int begin = std::max(seen, split * split_size), end = std::min(length, (split + 1) * split_size);
+            const int first = split * split_size + (split_size == 64);
+            const int begin = std::max(seen, first), end = std::min(length, (split + 1) * split_size);
triton-split-kv other_sizes: blocks of at most 16 tokens
-        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, BLOCK=block_size,
+        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, BLOCK=min(16, block_size),
triton-split-kv both_give_attention: splits end at a multiple of eight tokens
-    end = tl.minimum((split + 1) * split_size, length)
+    end = tl.minimum(split * split_size + split_size // 8 * 8, length)
triton-split-kv a_single_split: weights are rounded to halves
-        mixed = mixed * shrink + tl.sum(weights[:, None] * values, axis=0)
+        mixed = mixed * shrink + tl.sum(weights.to(tl.float16).to(tl.float32)[:, None] * values, axis=0)
triton-split-kv a_single_split: peak and mass change places
-    return peak, mass, acc
+    return mass, peak, acc
triton-split-kv merge_weighs_by_the_largest_peak: the heads of a row are one vector
-    return out
+    return out.flatten(1)
"""
