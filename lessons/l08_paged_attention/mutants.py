"""Plausible wrong solutions of lesson 08."""

MUTANTS = """
08.1 keys_and_values_of_one_block: values first
-    keys, values = blocks.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
+    values, keys = blocks.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
08.1 keys_and_values_of_one_block: heads and slots are mixed up
-    keys, values = blocks.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
+    shape = (2, -1, cache.shape[2], cache.shape[4])
+    keys, values = blocks.transpose(0, 1).reshape(shape)[:, :length]
08.1 tokens_follow_the_table: reads the blocks in the order of their ids
-    blocks = cache[torch.tensor(table[:num_blocks])]  # a copy: [n, 2, kv_heads, block_size, head_dim]
+    blocks = cache[torch.tensor(sorted(table[:num_blocks]))]
08.1 tokens_follow_the_table: one run from the first block on
-    blocks = cache[torch.tensor(table[:num_blocks])]  # a copy: [n, 2, kv_heads, block_size, head_dim]
+    blocks = cache[table[0] : table[0] + num_blocks]
08.1 the_last_block_is_cut: returns whole blocks
-    keys, values = blocks.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
+    keys, values = blocks.permute(1, 0, 3, 2, 4).flatten(1, 2)
08.1 the_last_block_is_cut: forgets the last, partial block
-    num_blocks = -(-length // cache.shape[3])
+    num_blocks = max(1, length // cache.shape[3])
08.1 any_shape_works: a block has four slots
-    num_blocks = -(-length // cache.shape[3])
+    num_blocks = -(-length // 4)
08.1 any_shape_works: heads have eight numbers
-    keys, values = blocks.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
+    keys, values = blocks.permute(1, 0, 3, 2, 4).reshape(2, -1, cache.shape[2], 8)[:, :length]
08.2 one_block_is_a_softmax: no scale
-    grouped = scale * query.float().unflatten(0, (kv_heads, -1))  # [kv_heads, group, head_dim]
+    grouped = query.float().unflatten(0, (kv_heads, -1))
08.2 one_block_is_a_softmax: the sum of the weights is left out
-    return (out / total).flatten(0, 1).to(query.dtype)
+    return out.flatten(0, 1).to(query.dtype)
08.2 one_block_is_a_softmax: scales twice
-        scores = grouped @ keys.mT
+        scores = scale * grouped @ keys.mT
08.2 blocks_are_merged: every block is a softmax of its own, and they are averaged
-        total = total * shrink + weights.sum(-1, keepdim=True)
-        out = out * shrink + weights @ values
+        total = total + 1
+        out = out + weights @ values / weights.sum(-1, keepdim=True)
08.2 blocks_are_merged: reads the slots behind the last token
-        count = min(block_size, length - index * block_size)
+        count = block_size
08.2 a_new_maximum_rescales: rescales the sum and forgets the output
-        out = out * shrink + weights @ values
+        out = out + weights @ values
08.2 a_new_maximum_rescales: rescales with the inverse factor
-        shrink, weights = (top - new_top).exp(), (scores - new_top).exp()
+        shrink, weights = (new_top - top).exp().nan_to_num(0, 0, 0), (scores - new_top).exp()
08.2 large_scores_do_not_overflow: the reference is the maximum of the block, not of all so far
-        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
+        new_top = scores.amax(-1, keepdim=True)
08.2 large_scores_do_not_overflow: no maximum at all
-        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
+        new_top = torch.zeros_like(top)
08.2 heads_share_kv_heads: neighbours read different KV heads
-    grouped = scale * query.float().unflatten(0, (kv_heads, -1))  # [kv_heads, group, head_dim]
+    grouped = scale * query.float().unflatten(0, (-1, kv_heads)).transpose(0, 1)
@@
-    return (out / total).flatten(0, 1).to(query.dtype)
+    return (out / total).transpose(0, 1).flatten(0, 1).to(query.dtype)
08.2 one_block_at_a_time: gathers all blocks first
+    cache, table = cache[torch.tensor(table)], list(range(len(table)))
     for index in range(-(-length // block_size)):
08.2 one_block_at_a_time: looks for the maximum in a first pass
     for index in range(-(-length // block_size)):
+        cache[table[index]]
08.2 bf16_is_summed_in_fp32: keeps the sums in the cache's dtype
-        keys, values = cache[table[index], :, :, :count].float()  # [kv_heads, count, head_dim]
+        keys, values = cache[table[index], :, :, :count].float()
+        total, out = total.to(query.dtype).float(), out.to(query.dtype).float()
08.2 bf16_is_summed_in_fp32: returns fp32
-    return (out / total).flatten(0, 1).to(query.dtype)
+    return (out / total).flatten(0, 1)
08.3 decode_rows: sees the slots behind the end of a row
-        keys, values = found.view(2, 1, kv_heads, -1, head_dim)[:, :, :, : seq_lens[row]]
+        keys, values = found.view(2, 1, kv_heads, -1, head_dim)
08.3 decode_rows: does not see itself
-        keys, values = found.view(2, 1, kv_heads, -1, head_dim)[:, :, :, : seq_lens[row]]
+        length = max(1, seq_lens[row] - 1) if end - begin == 1 else seq_lens[row]
+        keys, values = found.view(2, 1, kv_heads, -1, head_dim)[:, :, :, :length]
08.3 decode_rows: uses the first table for all rows
-        wanted = index[row, :, : -(-seq_lens[row] // block_size)].flatten()
+        wanted = index[0, :, : -(-seq_lens[row] // block_size)].flatten()
08.3 mixed_batches: takes a view of one layer for a whole cache
-    step = cache.stride(0) // page
+    step = 2 * kv_heads
08.3 prefill_is_causal: a prompt sees its own future
-        mask = torch.arange(seen) <= torch.arange(before + first, seen)[:, None]
+        mask = torch.ones(last - first, seen, dtype=torch.bool)
08.3 prefill_is_causal: a token does not see itself
-        mask = torch.arange(seen) <= torch.arange(before + first, seen)[:, None]
+        mask = torch.arange(seen) <= (torch.arange(before + first, seen)[:, None] - 1).clamp_min(0)
08.3 a_chunk_sees_what_is_cached: queries are the first tokens of the row
-        mask = torch.arange(seen) <= torch.arange(before + first, seen)[:, None]
+        mask = torch.arange(seen) <= torch.arange(first, last)[:, None]
08.3 mixed_batches: decode rows come first
-            grouped = query[begin].view(1, kv_heads, -1, head_dim)
+            grouped = query[row].view(1, kv_heads, -1, head_dim)
08.3 a_row_keeps_its_result: gathers the whole table and hides nothing of it
-        wanted = index[row, :, : -(-seq_lens[row] // block_size)].flatten()
-        found = torch.index_select(pages, 0, wanted, out=space[: len(wanted)])
-        keys, values = found.view(2, 1, kv_heads, -1, head_dim)[:, :, :, : seq_lens[row]]
+        found = pages[index[row].flatten()]
+        keys, values = found.view(2, 1, kv_heads, -1, head_dim)
08.3 sixty_four_rows_are_fast: copies every key twice, and masks what is not there
-        found = torch.index_select(pages, 0, wanted, out=space[: len(wanted)])
-        keys, values = found.view(2, 1, kv_heads, -1, head_dim)[:, :, :, : seq_lens[row]]
-        if end - begin == 1:  # no mask, and no key repeated: the heads of a KV head stand where queries stand
+        blocks = cache[block_table[row, : -(-seq_lens[row] // block_size)]]
+        keys, values = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, None, :, : seq_lens[row]].contiguous()
+        if end - begin < 1:
"""
