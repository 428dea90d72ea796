"""Plausible wrong kernels, each with the check that must catch it."""

MUTANTS = """
cpp-rope a_pair_turns_by_its_angle: the other way round
-                x[i] = first * cos[i] - second * sin[i];
-                x[half + i] = second * cos[i] + first * sin[i];
+                x[i] = first * cos[i] + second * sin[i];
+                x[half + i] = second * cos[i] - first * sin[i];
cpp-rope a_pair_turns_by_its_angle: the second number is computed from the turned first
-                x[half + i] = second * cos[i] + first * sin[i];
+                x[half + i] = second * cos[i] + x[i] * sin[i];
cpp-rope a_pair_turns_by_its_angle: neighbours are a pair, as in GPT-J
-                const float first = x[i], second = x[half + i];
-                x[i] = first * cos[i] - second * sin[i];
-                x[half + i] = second * cos[i] + first * sin[i];
+                const float first = x[2 * i], second = x[2 * i + 1];
+                x[2 * i] = first * cos[i] - second * sin[i];
+                x[2 * i + 1] = second * cos[i] + first * sin[i];
cpp-rope the_first_position_changes_nothing: cos and sin change places
-        const float *cos = table + positions[token] * rotary_dim, *sin = cos + half;
+        const float *sin = table + positions[token] * rotary_dim, *cos = sin + half;
cpp-rope values_stay: values are turned, too
-        for (int head = 0; head < heads + kv_heads; head++, x += head_dim) {
+        for (int head = 0; head < heads + 2 * kv_heads; head++, x += head_dim) {
cpp-rope keys_turn_like_queries: keys are forgotten
-        for (int head = 0; head < heads + kv_heads; head++, x += head_dim) {
+        for (int head = 0; head < heads; head++, x += head_dim) {
cpp-rope keys_turn_like_queries: as many keys as queries
-        for (int head = 0; head < heads + kv_heads; head++, x += head_dim) {
+        for (int head = 0; head < 2 * heads && head < heads + 2 * kv_heads; head++, x += head_dim) {
cpp-rope positions_follow_the_list: the place in the step
-        const float *cos = table + positions[token] * rotary_dim, *sin = cos + half;
+        const float *cos = table + token * rotary_dim, *sin = cos + half;
cpp-rope positions_follow_the_list: one request, counted from the first position
-        const float *cos = table + positions[token] * rotary_dim, *sin = cos + half;
+        const float *cos = table + (positions[0] + token) * rotary_dim, *sin = cos + half;
cpp-rope dimensions_behind_stay: pairs are half a head apart
-                const float first = x[i], second = x[half + i];
+                const float first = x[i], second = x[head_dim / 2 + i];
                 x[i] = first * cos[i] - second * sin[i];
-                x[half + i] = second * cos[i] + first * sin[i];
+                x[head_dim / 2 + i] = second * cos[i] + first * sin[i];
cpp-rope dimensions_behind_stay: sin begins half a head further
-        const float *cos = table + positions[token] * rotary_dim, *sin = cos + half;
+        const float *cos = table + positions[token] * rotary_dim, *sin = cos + head_dim / 2;
cpp-rope any_head_size: whole vectors only
-            for (int i = 0; i < half; i++) {
+            for (int i = 0; i < half / 4 * 4; i++) {
cuda-rope a_pair_turns_by_its_angle: the other way round
-            turned[0].at[k] = first.at[k] * c.at[k] - second.at[k] * s.at[k];
-            turned[1].at[k] = second.at[k] * c.at[k] + first.at[k] * s.at[k];
+            turned[0].at[k] = first.at[k] * c.at[k] + second.at[k] * s.at[k];
+            turned[1].at[k] = second.at[k] * c.at[k] - first.at[k] * s.at[k];
cuda-rope values_stay: values are turned, too
-    for (int piece = threadIdx.x; piece < (heads + kv_heads) * pieces; piece += THREADS) {
+    for (int piece = threadIdx.x; piece < (heads + 2 * kv_heads) * pieces; piece += THREADS) {
cuda-rope many_heads: one piece for each thread
-    for (int piece = threadIdx.x; piece < (heads + kv_heads) * pieces; piece += THREADS) {
+    for (int piece = threadIdx.x; piece < (heads + kv_heads) * pieces && piece < THREADS; piece += THREADS) {
cuda-rope positions_follow_the_list: the place in the step
-    const float *cos = table + positions[blockIdx.x] * rotary_dim, *sin = cos + half;
+    const float *cos = table + blockIdx.x * rotary_dim, *sin = cos + half;
cuda-rope positions_follow_the_list: positions are read as 32-bit numbers
-    const float *cos = table + positions[blockIdx.x] * rotary_dim, *sin = cos + half;
+    const int position = reinterpret_cast<const int*>(positions)[blockIdx.x];
+    const float *cos = table + int64_t(position) * rotary_dim, *sin = cos + half;
cuda-rope dimensions_behind_stay: heads are rotary_dim apart
-        float* x = qkv + piece / pieces * head_dim + i;
+        float* x = qkv + piece / pieces * rotary_dim + i;
cuda-rope threads_run_in_any_order: two threads for a pair, the second reads what the first has written
-    for (int piece = threadIdx.x; piece < (heads + kv_heads) * pieces; piece += THREADS) {
-        const int i = piece % pieces * 4;
+    const int all = (heads + kv_heads) * pieces;
+    for (int both = threadIdx.x; both < 2 * all; both += THREADS) {
+        const int piece = both % all, i = piece % pieces * 4;
@@
-        store(x, turned[0]);
-        store(x + half, turned[1]);
+        if (both < all) store(x, turned[0]);
+        else store(x + half, turned[1]);
triton-rope a_pair_turns_by_its_angle: the other way round
-    tl.store(at, first * cos - second * sin, mask=inside)
-    tl.store(at + HALF, second * cos + first * sin, mask=inside)
+    tl.store(at, first * cos + second * sin, mask=inside)
+    tl.store(at + HALF, second * cos - first * sin, mask=inside)
triton-rope a_pair_turns_by_its_angle: the second half is read too late
     second = tl.load(at + HALF, mask=inside, other=0.0)
     tl.store(at, first * cos - second * sin, mask=inside)
+    first = tl.load(at, mask=inside, other=0.0)
triton-rope values_stay: values are turned, too
-    half, turned = table.shape[1] // 2, heads + kv_heads
+    half, turned = table.shape[1] // 2, heads + 2 * kv_heads
triton-rope keys_turn_like_queries: keys are forgotten
-    half, turned = table.shape[1] // 2, heads + kv_heads
+    half, turned = table.shape[1] // 2, heads
triton-rope positions_follow_the_list: the place in the step
-    row = table + tl.load(positions + token) * (2 * HALF) + pair
+    row = table + token * (2 * HALF) + pair
triton-rope sizes_that_are_no_power_of_two: no mask for the heads
-    inside = (head < TURNED) & (pair < HALF)
+    inside = (head < HEADS) & (pair < HALF)
triton-rope sizes_that_are_no_power_of_two: no mask for the pairs
-    inside = (head < TURNED) & (pair < HALF)
+    inside = (head < TURNED) & (pair < WIDTH)
cpp-rope it_stays_inside_its_arrays: reads the position of the next token
+        const volatile int64_t next = positions[token + 1];
+        (void)next;
         float* x = qkv + int64_t(token) * (heads + 2 * kv_heads) * head_dim;
cpp-rope it_stays_inside_its_arrays: a scratch array for each token, never freed
+        static float* volatile scratch;
+        scratch = new float[half + 16];
         float* x = qkv + int64_t(token) * (heads + 2 * kv_heads) * head_dim;
cuda-rope it_stays_inside_its_arrays: reads the position of the next token
+    const volatile int64_t next = positions[blockIdx.x + 1];
+    (void)next;
     qkv += int64_t(blockIdx.x) * (heads + 2 * kv_heads) * head_dim;
cuda-rope no_two_threads_race: the last thread reads a number of the first, and no barrier lies between
-    // a thread reads both numbers of a pair before it writes them, and no other thread touches them
+    const volatile float first_of_all = qkv[0];
+    (void)first_of_all;
cuda-rope the_threads_share_the_work: one thread works
-    for (int piece = threadIdx.x; piece < (heads + kv_heads) * pieces; piece += THREADS) {
+    const int all = (heads + kv_heads) * pieces;
+    for (int piece = threadIdx.x ? all : 0; piece < all; ++piece) {
triton-rope it_stays_inside_its_tensors: sines are loaded without a mask
-    sin = tl.load(row + HALF, mask=pair < HALF, other=0.0)
+    sin = tl.load(row + HALF)
triton-rope the_kernels_store_the_result: torch turns, and no kernel runs
-    _rotary_embedding[(len(qkv),)](
-        qkv, positions, table,
-        TURNED=turned, HEADS=qkv.shape[1], DIM=qkv.shape[2], HALF=half,
-        ROWS=triton.next_power_of_2(turned), WIDTH=triton.next_power_of_2(half),
-    )  # fmt: skip
+    cos, sin = table[positions, None, :half], table[positions, None, half:]
+    first, second = qkv[:, :turned, :half].clone(), qkv[:, :turned, half : 2 * half].clone()
+    qkv[:, :turned, :half] = first * cos - second * sin
+    qkv[:, :turned, half : 2 * half] = second * cos + first * sin
cpp-rope random_steps: the last of five to seven tokens is left out
-    for (int token = 0; token < tokens; token++) {
+    for (int token = 0; token < tokens - (tokens > 4 && tokens < 8); token++) {
cpp-rope a_pair_turns_by_its_angle: cos and sin are rounded to halves
-                x[i] = first * cos[i] - second * sin[i];
-                x[half + i] = second * cos[i] + first * sin[i];
+                const float c = _Float16(cos[i]), s = _Float16(sin[i]);
+                x[i] = first * c - second * s;
+                x[half + i] = second * c + first * s;
triton-rope a_pair_turns_by_its_angle: a copy of qkv is turned
     half, turned = table.shape[1] // 2, heads + kv_heads
+    qkv = qkv.clone()
"""
