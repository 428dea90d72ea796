"""Plausible wrong kernels, each with the check that must catch it."""

MUTANTS = """
cpp-lora-sgmv one_row_expands: y is overwritten
-            store(to, load(to) + scaling * sums[row][v]);
+            store(to, scaling * sums[row][v]);
cpp-lora-sgmv rows_of_one_adapter: one tile for each adapter
-        for (int at = starts[adapter]; at < starts[adapter + 1]; at += TILE)
+        for (int at = starts[adapter]; at < starts[adapter + 1] && at < starts[adapter] + TILE; at += TILE)
cpp-lora-sgmv every_adapter_has_its_own_matrices: rows are taken in the order of the list
-            of_x[i] = x + long(rows[i]) * depth;
+            of_x[i] = x + long(rows + i - order) * depth;
cpp-lora-sgmv every_adapter_has_its_own_matrices: the first adapter's B
-        const float* of_b = b + long(adapter) * max_rank * columns;
+        const float* of_b = b;
cpp-lora-sgmv ranks_differ: every slot is taken for full
-        SHRINK[count - 1](of_x, a + long(adapter) * max_rank * depth, depth, of_low, ranks[adapter]);
+        SHRINK[count - 1](of_x, a + long(adapter) * max_rank * depth, depth, of_low, max_rank);
cpp-lora-sgmv any_size: whole vectors of columns only
-    for (; column < columns; column++)
+    for (; column < columns / LANES * LANES; column++)
cpp-lora-sgmv a_row_has_the_same_bits_alone: single rows are summed in another order
-            float total = sum(sums[row][r]);
+            float total = ROWS == 1 ? 0 : sum(sums[row][r]);
+            if (ROWS == 1)
+                for (int other = 0; other < k; other++) total += x[row][other] * a[long(r) * depth + other];
cuda-lora-sgmv one_row_shrinks: each lane's sum is taken for the warp's
-        const float total = reduce_lanes<WARP>(sums[i], Sum());
+        const float total = sums[i];
cuda-lora-sgmv rows_of_one_adapter: every block does the first tile
-        first = starts[blockIdx.x] + int(blockIdx.y) * TILE;
+        first = starts[blockIdx.x];
cuda-lora-sgmv adapters_without_rows: the end is that of all rows
-        count = min(TILE, starts[blockIdx.x + 1] - first);  // 0 or less: nothing to do
+        count = min(TILE, starts[gridDim.x] - first);
cuda-lora-sgmv ranks_differ: warps behind the rank write, too
-    if (tile.count <= 0 || rank >= ranks[adapter]) return;  // the whole warp; no barrier follows
+    if (tile.count <= 0 || rank >= max_rank) return;
cuda-lora-sgmv other_sizes: one step along the depth
-    for (int k = lane_id() * 4; k < depth; k += WARP * 4) {
+    for (int k = lane_id() * 4; k < depth && k < WARP * 4; k += WARP * 4) {
cuda-lora-sgmv threads_run_in_any_order: no barrier before low is read
-    __syncthreads();
+    if (columns == 0) __syncthreads();
triton-lora-sgmv one_row_expands: the scaling is forgotten
-        added = tl.load(scaling + adapter) * tl.dot(factors, of_b, input_precision="ieee")
+        added = tl.dot(factors, of_b, input_precision="ieee")
triton-lora-sgmv rows_of_one_adapter: one tile for each adapter
-        _lora_shrink[(adapters, triton.cdiv(len(order), TILE))](
+        _lora_shrink[(adapters, 1)](
triton-lora-sgmv every_adapter_has_its_own_matrices: the first adapter's A
-        a_rows = a + (adapter.to(tl.int64) * max_rank + r[:, None]) * depth
+        a_rows = a + r[:, None] * depth
triton-lora-sgmv ranks_differ: every slot is taken for full
-        used, within = r < tl.load(ranks + adapter), n < columns
+        used, within = r < max_rank, n < columns
triton-lora-sgmv other_sizes: one block along the depth
-        for start in range(0, depth, BLOCK_K):
+        for start in range(0, BLOCK_K, BLOCK_K):
triton-lora-sgmv rows_without_an_adapter_stay: a tile without a row still writes row 0
-        tl.store(at, total, mask=inside[:, None] & used[None, :])
+        tl.store(at, total, mask=used[None, :] & (row[:, None] >= 0))
cpp-lora-sgmv it_stays_inside_its_arrays: reads the start behind the last
 extern "C" void lora_shrink(const float* x, const float* a, const int* order, const int* starts, const int* ranks,
                             float* low, int adapters, int max_rank, int depth) {
+    const volatile int next = starts[adapters + 1];
+    (void)next;
cpp-lora-sgmv it_stays_inside_its_arrays: a scratch array in each call, never freed
 extern "C" void lora_shrink(const float* x, const float* a, const int* order, const int* starts, const int* ranks,
                             float* low, int adapters, int max_rank, int depth) {
+    static float* volatile scratch;
+    scratch = new float[depth + 16];
cuda-lora-sgmv it_stays_inside_its_arrays: reads the rank of the next adapter
+    const volatile int next = ranks[adapter + 1];
+    (void)next;
     a += (int64_t(adapter) * max_rank + rank) * depth;
cuda-lora-sgmv no_two_threads_race: the lanes add to one number without an atomic
-        const float total = reduce_lanes<WARP>(sums[i], Sum());
-        if (i < tile.count && lane_id() == 0) low[rows[i] * max_rank + rank] = total;
+        if (i < tile.count && lane_id() == 0) low[rows[i] * max_rank + rank] = 0;
+        __syncwarp();
+        if (i < tile.count) low[rows[i] * max_rank + rank] += sums[i];
cuda-lora-sgmv the_threads_share_the_work: one lane of a warp works
-    for (int k = lane_id() * 4; k < depth; k += WARP * 4) {
+    for (int k = lane_id() ? depth : 0; k < depth; k += 4) {
triton-lora-sgmv it_stays_inside_its_tensors: rows behind the end of the list are loaded
-    return tl.load(order + place, mask=inside, other=0).to(tl.int64), inside
+    return tl.load(order + place).to(tl.int64), inside
triton-lora-sgmv the_kernels_store_the_result: torch shrinks
-    if len(order):
-        _lora_shrink[(adapters, triton.cdiv(len(order), TILE))](
-            x, a, order, starts, ranks, low, max_rank, depth,
-            TILE=TILE, RANKS=max(16, triton.next_power_of_2(max_rank)), BLOCK_K=64,
-        )  # fmt: skip
+    for adapter in range(adapters):
+        rank = int(ranks[adapter])
+        for row in order[starts[adapter] : starts[adapter + 1]].tolist():
+            low[row, :rank] = a[adapter, :rank] @ x[row]
cpp-lora-sgmv random_batches: the last of five adapters is left out
-    for (int adapter = 0; adapter < adapters; adapter++)
+    for (int adapter = 0; adapter < adapters - (adapters == 5); adapter++)
triton-lora-sgmv one_row_shrinks: the products take halves
-            total = tl.dot(of_x, tl.trans(of_a), total, input_precision="ieee")
+            total = tl.dot(of_x.to(tl.float16), tl.trans(of_a).to(tl.float16), total)
triton-lora-sgmv one_row_expands: a copy of y is written
     adapters, max_rank, columns = b.shape
+    y = y.clone()
"""
