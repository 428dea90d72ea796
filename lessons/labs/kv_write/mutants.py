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
cpp-kv-write it_stays_inside_its_arrays: copies whole vectors through a buffer
-            std::memcpy(to + head * page, key + from + head * head_dim, bytes);
+            float buffer[1024];
+            std::memcpy(buffer, key + from + head * head_dim, (bytes + 31) / 32 * 32);
+            std::memcpy(to + head * page, buffer, bytes);
cpp-kv-write it_stays_inside_its_arrays: a buffer for each token, never freed
         const int64_t from = int64_t(token) * stride;
+        static float* volatile buffer;
+        buffer = new float[head_dim + 16];
cuda-kv-write it_stays_inside_its_arrays: reads the slot of the next token
+    const volatile int64_t next = slots[blockIdx.x + 1];
+    (void)next;
     const int64_t page = int64_t(block_size) * head_dim;
cuda-kv-write no_two_threads_race: one thread clears the slot, and no barrier follows
-    // neighbouring threads move neighbouring pieces of 16 bytes
+    for (int i = 0; threadIdx.x == 0 && i < kv_heads * head_dim; ++i) to[i / head_dim * page + i % head_dim] = 0;
cuda-kv-write the_threads_share_the_work: one thread works
-    for (int i = threadIdx.x * 4; i < kv_heads * head_dim; i += THREADS * 4) {
+    for (int i = threadIdx.x ? kv_heads * head_dim : 0; i < kv_heads * head_dim; i += 4) {
triton-kv-write it_stays_inside_its_tensors: keys are loaded without a mask
-        tl.store(kv + at, tl.load(key + start + column, mask=inside), mask=inside)
+        tl.store(kv + at, tl.load(key + start + column), mask=inside)
triton-kv-write the_kernels_store_the_result: torch writes, and no kernel runs
-    _reshape_and_cache[(tokens,)](
-        key, value, kv, slots, key.stride(0),
-        KV_HEADS=kv_heads, DIM=dim, BLOCK_SIZE=kv.shape[3], WIDTH=triton.next_power_of_2(kv_heads * dim),
-    )  # fmt: skip
+    for token, slot in enumerate(slots.tolist()):
+        if slot >= 0:
+            kv[slot // kv.shape[3], 0, :, slot % kv.shape[3]] = key[token]
+            kv[slot // kv.shape[3], 1, :, slot % kv.shape[3]] = value[token]
cpp-kv-write random_steps: the last of more than ten tokens is left out
-    for (int token = 0; token < tokens; token++) {
+    for (int token = 0; token < tokens - (tokens > 10); token++) {
cpp-kv-write one_token: keys in the place of values
-            std::memcpy(to + (kv_heads + head) * page, value + from + head * head_dim, bytes);
+            std::memcpy(to + (kv_heads + head) * page, key + from + head * head_dim, bytes);
cpp-kv-write one_token: a block is cleared when its first slot is written
         const int64_t from = int64_t(token) * stride;
+        if (slot % block_size == 0) std::memset(to, 0, sizeof(float) * 2 * kv_heads * page);
triton-kv-write one_token: a copy of kv is written
     tokens, kv_heads, dim = key.shape
+    kv = kv.clone()
"""
