"""Plausible wrong kernels, each with the check that must catch it."""

MUTANTS = """
cpp-kv-write one_token: values in the place of keys
-            std::memcpy(to + head * page, key + from + head * head_dim, bytes);
+            std::memcpy(to + head * page, value + from + head * head_dim, bytes);
cpp-kv-write one_token: heads are neighbours, as in [block_size, kv_heads, head_dim]
-            std::memcpy(to + head * page, key + from + head * head_dim, bytes);
+            std::memcpy(to + head * head_dim, key + from + head * head_dim, bytes);
cpp-kv-write the_offset_within_the_block: the offset counts heads
-        float* to = kv + slot / block_size * 2 * kv_heads * page + slot % block_size * head_dim;
+        float* to = kv + slot / block_size * 2 * kv_heads * page + slot % block_size * head_dim * kv_heads;
cpp-kv-write tokens_in_any_order: tokens follow each other from the first slot
-        const int64_t slot = slots[token];
+        const int64_t slot = slots[0] + token;
cpp-kv-write padding_writes_nothing: -1 counts as slot 0
-        if (slot < 0) continue;
+        if (slot < -1) continue;
cpp-kv-write padding_writes_nothing: padding ends the step
-        if (slot < 0) continue;
+        if (slot < 0) break;
cpp-kv-write tokens_lie_apart: tokens are taken for contiguous
-        const int64_t from = int64_t(token) * stride;
+        const int64_t from = int64_t(token) * kv_heads * head_dim;
cpp-kv-write other_block_sizes: blocks of four
-        float* to = kv + slot / block_size * 2 * kv_heads * page + slot % block_size * head_dim;
+        float* to = kv + slot / 4 * 2 * kv_heads * page + slot % 4 * head_dim;
cpp-kv-write any_head_size: whole vectors only
-    const size_t bytes = sizeof(float) * head_dim;
+    const size_t bytes = sizeof(float) * (head_dim / 4 * 4);
cuda-kv-write one_token: values in the place of keys
-        store(to + head * page + column, load<4>(key + i));
+        store(to + head * page + column, load<4>(value + i));
cuda-kv-write the_offset_within_the_block: the offset counts heads
-    float* to = kv + slot / block_size * 2 * kv_heads * page + slot % block_size * head_dim;
+    float* to = kv + slot / block_size * 2 * kv_heads * page + slot % block_size * head_dim * kv_heads;
cuda-kv-write padding_writes_nothing: no guard
-    if (slot < 0) return;  // the whole block: no thread waits for another
cuda-kv-write tokens_lie_apart: tokens are taken for contiguous
-    key += int64_t(blockIdx.x) * stride;
+    key += int64_t(blockIdx.x) * kv_heads * head_dim;
cuda-kv-write heads_of_many_sizes: one piece for each thread
-    for (int i = threadIdx.x * 4; i < kv_heads * head_dim; i += THREADS * 4) {
+    for (int i = threadIdx.x * 4; i < kv_heads * head_dim && i < THREADS * 4; i += THREADS * 4) {
cuda-kv-write heads_of_many_sizes: one piece too many
-    for (int i = threadIdx.x * 4; i < kv_heads * head_dim; i += THREADS * 4) {
+    for (int i = threadIdx.x * 4; i <= kv_heads * head_dim; i += THREADS * 4) {
triton-kv-write padding_writes_nothing: no guard
-    if slot >= 0:
+    if slot >= -1:
triton-kv-write one_token: heads are neighbours
-    at = block + column // DIM * page + slot % BLOCK_SIZE * DIM + column % DIM
+    at = block + slot % BLOCK_SIZE * DIM + column
triton-kv-write tokens_lie_apart: tokens are taken for contiguous
-    start = token.to(tl.int64) * stride
+    start = token.to(tl.int64) * KV_HEADS * DIM
triton-kv-write heads_of_many_sizes: half of the columns
-        KV_HEADS=kv_heads, DIM=dim, BLOCK_SIZE=kv.shape[3], WIDTH=triton.next_power_of_2(kv_heads * dim),
+        KV_HEADS=kv_heads, DIM=dim, BLOCK_SIZE=kv.shape[3], WIDTH=min(256, triton.next_power_of_2(kv_heads * dim)),
triton-kv-write tokens_in_any_order: tokens follow each other from the first slot
-    slot = tl.load(slots + token)
+    slot = tl.load(slots) + token
"""
