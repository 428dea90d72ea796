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
"""
