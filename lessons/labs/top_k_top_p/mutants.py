"""Plausible wrong kernels, each with the check that must catch it."""

MUTANTS = """
cpp-top-k-top-p temperature_0_is_greedy: the last of equals
     while (logits[at] != peak) at++;
+    for (int other = at; other < vocab; other++)
+        if (logits[other] == peak) at = other;
cpp-top-k-top-p temperature_flattens: the temperature is forgotten in the draw
-        const vfloat score = (logit - peak) * inverse + load(noise + at, vocab - at);
+        const vfloat score = (logit - peak) + load(noise + at, vocab - at);
cpp-top-k-top-p ties_with_the_kth_stay: only what is above the k-th stays
+        if (floor < peak) floor = std::nextafter(floor, INFINITY);
         for_each_between(logits, vocab, below(floor), peak, [&](int token) { kept.push_back(logits[token]); });
cpp-top-k-top-p top_p_is_a_share_of_what_top_k_keeps: the share is that of the whole row
-        tokens = {kept.data(), nullptr, int(kept.size())};
+        if (top_p == 1) tokens = {kept.data(), nullptr, int(kept.size())};
cpp-top-k-top-p temperature_comes_before_top_p: shares of the unscaled logits
-        const vfloat weight = exponential((logit - peak) * inverse);
+        const vfloat weight = exponential(logit - peak);
cpp-top-k-top-p a_large_vocabulary: what lies above the last interval is not counted
-    float sum = at_high.sum, floor = high;
+    float sum = 0, floor = high;
cuda-top-k-top-p temperature_0_is_greedy: the highest id of equals
-    return uint64_t(ordered) << 32 | uint32_t(~token);
+    return uint64_t(ordered) << 32 | uint32_t(token | 0xff000000);
cuda-top-k-top-p top_k_keeps_k: one token too many
-    if (top_k[r] < vocab) limit = radix_search<false>(row, limit, float(top_k[r]), columns);
+    if (top_k[r] < vocab) limit = radix_search<false>(row, limit, float(top_k[r] + 1), columns);
cuda-top-k-top-p top_p_is_a_share_of_what_top_k_keeps: top_p looks at the whole row
-    if (top_p[r] < 1) limit = radix_search<true>(row, limit, top_p[r], columns);
+    if (top_p[r] < 1) limit = min(limit, radix_search<true>(row, __float_as_uint(INFINITY) - 1, top_p[r], columns));
cuda-top-k-top-p other_vocabularies: only the first step of the row
-    for (int first = threadIdx.x * 4; first < row.vocab; first += THREADS * 4) {
+    for (int first = threadIdx.x * 4; first < min(row.vocab, THREADS * 4); first += THREADS * 4) {
cuda-top-k-top-p random_batches: what lies above the digit is forgotten in the next pass
-            above = sum;
+            above = 0;
cuda-top-k-top-p threads_run_in_any_order: no barrier before the bins are added up
-        __syncthreads();
         for (int bin = warp_id(); bin < BINS; bin += WARPS) {
triton-top-k-top-p temperature_0_is_greedy: noise counts at temperature 0
-        score = tl.load(noise_row + token, mask=stays & (not greedy), other=0.0) - distance
+        score = tl.load(noise_row + token, mask=stays, other=0.0) - distance
triton-top-k-top-p noise_decides: the highest id of equals
-    token = tl.min(tl.where(best == tl.max(best, axis=0), best_token, vocab), axis=0)
+    token = tl.max(tl.where(best == tl.max(best, axis=0), best_token, 0), axis=0)
triton-top-k-top-p top_k_keeps_k: top_k needs one more than k
-        reached = _weigh(row, vocab, peak, temperature, pivots, MASS, BLOCK) >= target
+        reached = _weigh(row, vocab, peak, temperature, pivots, MASS, BLOCK) > target
triton-top-k-top-p top_p_is_a_share_of_what_top_k_keeps: top_p is not renormalised
-            _weigh(row, vocab, peak, temperature, limit + tl.zeros([PIVOTS], tl.int32), MASS, BLOCK)
+            _weigh(row, vocab, peak, temperature, 0x7F7FFFFF + tl.zeros([PIVOTS], tl.int32), MASS, BLOCK)
triton-top-k-top-p large_logits: exp of the logit itself
-        weight = tl.exp(-distance) if MASS else tl.full([BLOCK], 1.0, tl.float32)
+        weight = tl.exp(peak / temperature - distance) if MASS else tl.full([BLOCK], 1.0, tl.float32)
triton-top-k-top-p other_vocabularies: the filters see the first block only
-    for start in range(0, vocab, BLOCK):
+    for start in range(0, BLOCK, BLOCK):
         token = start + tl.arange(0, BLOCK)
         logits = tl.load(row + token, mask=token < vocab, other=-float("inf"))
         distance, bits = _distance(logits, peak, temperature)
cpp-top-k-top-p it_stays_inside_its_arrays: reads the top_p of the next row
+        const volatile float next = top_p[row + 1];
+        (void)next;
         const float peak = highest_of(logits, vocab), inverse = 1 / temperature[row];
cpp-top-k-top-p it_stays_inside_its_arrays: a scratch array for each row, never freed
+        static float* volatile scratch;
+        scratch = new float[vocab + 16];
         const float peak = highest_of(logits, vocab), inverse = 1 / temperature[row];
cuda-top-k-top-p it_stays_inside_its_arrays: reads the top_p of the next row
+    const volatile float next = top_p[r + 1];
+    (void)next;
     noise += int64_t(r) * vocab;
cuda-top-k-top-p no_two_threads_race: the lanes add to a sum without an atomic
-            sum = reduce_lanes<WARP>(sum, Sum());
-            if (lane_id() == 0) sums[bin] = sum;
+            if (lane_id() == 0) sums[bin] = 0;
+            __syncwarp();
+            sums[bin] += sum;
cuda-top-k-top-p the_threads_share_the_work: one thread looks at the logits
-    for (int first = threadIdx.x * 4; first < row.vocab; first += THREADS * 4) {
+    for (int first = threadIdx.x ? row.vocab : 0; first < row.vocab; first += 4) {
triton-top-k-top-p it_stays_inside_its_tensors: noise behind the row is loaded
-        score = tl.load(noise_row + token, mask=stays & (not greedy), other=0.0) - distance
+        score = tl.where(greedy, 0.0, tl.load(noise_row + token)) - distance
triton-top-k-top-p the_kernels_store_the_result: torch makes the tensor that is returned
-    return token_ids
+    return token_ids.clone()
cpp-top-k-top-p random_batches: the second of two rows is left out
-    for (int row = 0; row < rows; row++, logits += vocab, noise += vocab) {
+    for (int row = 0; row < rows - (rows == 2); row++, logits += vocab, noise += vocab) {
triton-top-k-top-p every_row_has_its_own_parameters: the first row's top_k for all
-        tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row),
+        tl.load(temperatures + row), tl.load(top_ks), tl.load(top_ps + row),
triton-top-k-top-p forbidden_tokens_never_win: a forbidden token is very unlikely
-        values = tl.load(logits_row + token, mask=stays, other=-float("inf"))
+        values = tl.maximum(tl.load(logits_row + token, mask=stays, other=-float("inf")), peak - 1000.0)
triton-top-k-top-p top_p_keeps_the_crossing_token: the crossing token goes
-        stays = stays & (bits <= limit)
+        crossing = tl.where((bits == limit) & (bits > 0), 1, 0) * tl.where(top_p < 1, 1, 0)
+        stays = stays & (bits <= limit) & (crossing == 0)
triton-top-k-top-p ties_at_top_p_stay_or_go_together: every second of equal logits at top_p goes
-        stays = stays & (bits <= limit)
+        crossing = tl.where((bits == limit) & (token % 2 == 0), 1, 0) * tl.where(top_p < 1, 1, 0)
+        stays = stays & (bits <= limit) & (crossing == 0)
triton-top-k-top-p any_vocabulary: whole groups of 64 tokens
-        stays = token < vocab
+        stays = token < vocab // 64 * 64
cpp-top-k-top-p noise_decides: the best score begins at -1,000
-    float best = -INFINITY;
+    float best = -1000;
     int token = 0;
triton-top-k-top-p temperature_0_is_greedy: a column is returned
-    return token_ids
+    return token_ids[:, None]
"""
