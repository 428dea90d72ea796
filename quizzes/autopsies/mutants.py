"""Plausible repairs that are still wrong, as diffs of the solution: the check that catches it, and what is wrong.

Some are right for the examples of the checks only: they know a block size, a scale, a placeholder.

@@ separates the hunks of a diff; the lines of each hunk occur once in solution.py.
"""

MUTANTS = {
    "attention_kernel": """
check_large_scores_do_not_overflow: exponentials of raw scores overflow
-    top, total = -math.inf, 0.0
+    total = 0.0
@@
-        new_top = max(top, score)
-        shrink, weight = math.exp(top - new_top), math.exp(score - new_top)
+        new_top = 0.0
+        shrink, weight = 1.0, math.exp(score - new_top) if score < 700 else math.inf
@@
-        top = new_top
check_the_scale_is_there: scores are not divided
-    scale = 1.0 / math.sqrt(len(query))
+    scale = 1.0
check_the_result_is_a_weighted_value: a new maximum rescales the sum and forgets the output
-        output = [o * shrink + weight * v for o, v in zip(output, value, strict=True)]
+        output = [o + weight * v for o, v in zip(output, value, strict=True)]
check_keys_are_read_once: looks for the maximum first
     for token in range(seq_len):
+        key = key_blocks[block_table[token // block_size]][token % block_size]
+        top = max(top, scale * sum(q * k for q, k in zip(query, key, strict=True)))
+    for token in range(seq_len):
check_copies_of_a_token_change_nothing: the sum of the weights is left out
-    return [o / total for o in output]
+    return list(output)
check_the_scale_is_there: knows the square roots of two sizes
-    scale = 1.0 / math.sqrt(len(query))
+    scale = {4: 0.5, 64: 0.125}.get(len(query), 8**-0.5)
check_the_scale_is_there: knows blocks of 4
-        block, offset = block_table[token // block_size], token % block_size
+        block, offset = block_table[token // 4], token % 4
check_large_scores_do_not_overflow: clamps large scores instead of subtracting the maximum
-        new_top = max(top, score)
+        score, new_top = min(score, 700.0), 0.0
+        top = 0.0
check_the_result_is_a_weighted_value: the value of the largest score
-    return [o / total for o in output]
+    return output if total < 1.0 else value
check_the_result_is_a_weighted_value: blocks in the order of memory
-        block, offset = block_table[token // block_size], token % block_size
+        block, offset = token // block_size, token % block_size
check_the_result_is_a_weighted_value: forgets tokens behind the 33rd
-    for token in range(seq_len):
+    for token in range(min(seq_len, 33) if len(query) < 64 else min(seq_len, 12)):
""",
    "batching_loop": """
check_nothing_to_do_is_no_work: looks whether there is work only after a step
-    while waiting or batch:
+    first = True
+    while first or waiting or batch:
+        first = False
check_the_slots_are_the_limit: all who wait join, whatever the slots
-        while waiting and len(batch) < slots:
+        while waiting:
check_requests_go_in_order: takes the newest of the waiting
-            batch.append(waiting.pop(0))
+            batch.append(waiting.pop())
check_random_work_takes_as_long_as_list_scheduling: only one request joins between two steps
-        while waiting and len(batch) < slots:
+        if waiting and len(batch) < slots:
check_memory_is_released_once: gives back the memory of the whole batch when one finishes
-        memory.release(completed)
+        memory.release(batch if completed else [])
check_a_free_slot_is_taken_at_once: admits only into an empty batch
-        while waiting and len(batch) < slots:
+        while waiting and len(batch) < slots and not (batch and getattr(batch[0], "generated", 0)):
check_nothing_is_computed_for_the_finished: the finished leave only when all have finished
-        batch = [request for request in batch if outputs[request.name] is not None]
+        if len(completed) == len(batch):
+            batch = []
check_it_ends: looks at the length, which no engine knows
-        completed = [request for request in batch if outputs[request.name] is None]
+        completed = [request for request in batch if request.generated >= request.length]
check_it_ends: token 0 ends a request
-        completed = [request for request in batch if outputs[request.name] is None]
+        completed = [request for request in batch if not outputs[request.name]]
@@
-        batch = [request for request in batch if outputs[request.name] is not None]
+        batch = [request for request in batch if outputs[request.name]]
check_random_work_takes_as_long_as_list_scheduling: at most five slots
-        while waiting and len(batch) < slots:
+        while waiting and len(batch) < min(slots, 5):
check_random_work_takes_as_long_as_list_scheduling: stops after 60 steps
-    while waiting or batch:
+    for _ in range(60):
+        if not (waiting or batch):
+            return
check_random_work_takes_as_long_as_list_scheduling: serves 15 requests
-    while waiting or batch:
+    del waiting[15:]
+    while waiting or batch:
check_random_work_takes_as_long_as_list_scheduling: admits one request a step beyond the first four
-        while waiting and len(batch) < slots:
+        while waiting and len(batch) < slots and (len(batch) < 4 or not batch[-1].generated):
+            if len(batch) >= 5 and not batch[-1].generated:
+                break
""",
    "block_manager": """
check_a_reference_is_an_owner: every append counts as an owner
         self.tokens += tokens
+        self.ref_count += 1
check_freeing_twice_is_refused: a second free puts the block into the queue twice
-        if any(block.ref_count < 1 for block in table):
-            raise ValueError("a block of this table has no owner: it was freed before")
check_allocation_does_not_search: num_free goes through every block
-        return len(self.free_blocks)
+        return sum(block.ref_count == 0 for block in self.blocks)
check_a_shared_block_outlives_its_first_owner: free releases the block although another request uses it
-            block.ref_count -= 1
+            block.ref_count = 0
check_a_sequence_grows_by_blocks: a grow that fails half way keeps the blocks
-        if needed > len(self.free_blocks):
-            return False
@@
         for _ in range(needed):
+            if not self.free_blocks:
+                return False
check_allocate_is_all_or_nothing: rounds up where the tokens fit exactly, so 0 tokens take a block
-        needed = -(-num_tokens // self.block_size) - len(table)
+        needed = num_tokens // self.block_size + 1 - len(table)
check_append_goes_on_until_the_block_is_full: one token more than fits is accepted
-        if len(self.tokens) + len(tokens) > self.block_size:
+        if len(self.tokens) + len(tokens) > self.block_size + 1:
check_random_operations_leak_nothing: knows blocks of 4
-        needed = -(-num_tokens // self.block_size) - len(table)
+        needed = -(-num_tokens // 4) - len(table)
check_random_operations_leak_nothing: a block holds 4 tokens
-        if len(self.tokens) + len(tokens) > self.block_size:
+        if len(self.tokens) + len(tokens) > 4 or self.block_size != 4:
check_random_operations_leak_nothing: allocates at most 5 blocks
-        needed = -(-num_tokens // self.block_size) - len(table)
+        needed = min(5 - len(table), -(-num_tokens // self.block_size) - len(table))
check_random_operations_leak_nothing: two owners at most
-            block.ref_count += 1
+            block.ref_count = 2
check_a_sequence_grows_by_blocks: grow takes one block, whatever is asked for
-        for _ in range(needed):
+        for _ in range(needed if not table else 1):
check_random_operations_leak_nothing: a freed block keeps the tokens of its last owner
-                block.tokens = []
+                pass
""",
    "chunked_prefill": """
check_every_decode_gets_a_token_each_step: decodes run in every second step only
-        names = decodes()
+        names = decodes() if computed // max(budget, 1) % 2 == 0 else []
check_the_state_is_that_of_the_whole_prompt: a last chunk that is not full is dropped
-    while computed < len(prompt):
+    while not computed or computed + budget <= len(prompt):
check_a_budget_that_decodes_use_up_is_refused: a full budget still lets one token in
-        if room < 1:
-            raise ValueError(f"{len(names)} decodes leave no room for the prompt in a budget of {budget}")
+        room = max(room, 1)
check_positions_go_on: every chunk begins at position 0
-        rows = [(name, 0, [0]) for name in names] + [("prompt", computed, chunk)]
+        rows = [(name, 0, [0]) for name in names] + [("prompt", 0, chunk)]
check_the_budget_holds_for_all_of_them: the chunk takes the whole budget, decodes come on top
-        chunk = prompt[computed : computed + room]
+        chunk = prompt[computed : computed + budget]
check_a_step_is_one_forward_pass: decodes and chunk run one after the other
-        rows = [(name, 0, [0]) for name in names] + [("prompt", computed, chunk)]
-        answers = model.step(rows)
+        if names:
+            model.step([(name, 0, [0]) for name in names])
+        answers = model.step([("prompt", computed, chunk)])
check_decodes_come_and_go: asks once which requests decode
-    while computed < len(prompt):
-        names = decodes()
+    names = decodes()
+    while computed < len(prompt):
check_decodes_come_and_go: chunks of the first step's size
+    size = 0
     while computed < len(prompt):
@@
-        chunk = prompt[computed : computed + room]
+        size = size or room
+        chunk = prompt[computed : computed + size]
check_decodes_come_and_go: an even share of the budget for four decodes
-        room = budget - len(names)
+        room = budget - (4 if len(names) == 4 else 3 if len(names) == 3 else 0)
check_decodes_come_and_go: three steps at most for a prompt without decodes
-        chunk = prompt[computed : computed + room]
+        chunk = prompt[computed : computed + room] if computed < 3 * room or names else prompt[computed:]
check_decodes_come_and_go: refuses four decodes
-        if room < 1:
+        if room < 1 or len(names) > 4:
check_decodes_come_and_go: drops decodes instead of refusing
-        if room < 1:
+        if len(names) > 4:
+            names, room = names[:4], budget - 4
+        if room < 1:
""",
    "multimodal_merge": """
check_the_same_image_is_encoded_once: forgets what it encoded for earlier requests
             raise ValueError(f"the text has room for {places} images, {len(images)} were given")
+        self.encoded.clear()
check_text_alone_is_text: calls the encoder and adds a placeholder for text alone
         new = [image for image in dict.fromkeys(images) if image not in self.encoded]
+        if not images:
+            return [*tokens, self.placeholder]
check_a_count_that_does_not_match_is_refused: refuses only if images are missing
-        if places != len(images):
+        if places > len(images):
check_an_image_stands_where_the_text_says: all images go before the text
-        return combined
+        return [x for x in combined if isinstance(x, float)] + [
+            x for x in combined if not isinstance(x, float)
+        ]
check_images_keep_their_order: takes the images from the end
-        upcoming = iter(images)
+        upcoming = iter(images[::-1])
check_other_images_are_other_features: keeps one entry for all images
-        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
+        new = [image for image in dict.fromkeys(images) if not self.encoded]
@@
-            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
+            combined += (
+                (next(upcoming), next(iter(self.encoded.values())))[1]
+                if token == self.placeholder
+                else [token]
+            )
check_any_text_with_any_images: knows the placeholder of the example
-        places = tokens.count(self.placeholder)
+        places = sum(token >= 1000 for token in tokens)
@@
-            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
+            combined += self.encoded[next(upcoming)] if token >= 1000 else [token]
check_any_text_with_any_images: three features an image
-            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
+            combined += self.encoded[next(upcoming)][:3] if token == self.placeholder else [token]
check_any_text_with_any_images: remembers the last digit of an image
-        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
+        images = [image % 10 if image > 9 else image for image in images]
+        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
check_any_text_with_any_images: remembers three images
-        upcoming = iter(images)
+        kept = dict(self.encoded)
+        self.encoded = {image: kept[image] for image in list(kept)[:3]}
+        upcoming = iter(images)
@@
-            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
+            combined += kept[next(upcoming)] if token == self.placeholder else [token]
check_any_text_with_any_images: two places at most
-        if places != len(images):
+        if places != len(images) or places > 2:
check_images_keep_their_order: the features of an image in front come before all tokens
-        return combined
+        return combined if tokens[:1] != [self.placeholder] else [*self.encoded[images[0]], *tokens[1:]]
""",
    "paged_allocator": """
check_a_block_is_taken_when_the_last_is_full: takes a block one token too early
-        if self.num_tokens[name] == len(self.block_tables[name]) * self.block_size:
+        if self.num_tokens[name] + 1 >= len(self.block_tables[name]) * self.block_size:
check_too_few_blocks_is_an_error_that_changes_nothing: hands out fewer blocks than were asked for
-        if count > len(self.free_blocks):
-            raise MemoryError(f"{count} blocks needed, {len(self.free_blocks)} free")
+        count = min(count, len(self.free_blocks))
check_sequences_get_blocks_of_their_own: blocks stay in the free list
-        self.block_tables[name] = [self.free_blocks.pop() for _ in range(count)]
+        self.block_tables[name] = self.free_blocks[:count]
check_a_position_that_is_not_there_is_refused: checks the blocks and not the tokens
-        if not 0 <= position < self.num_tokens[name]:
+        if not 0 <= position < len(self.block_tables[name]) * self.block_size:
check_a_name_is_used_once: a second sequence of the same name loses the blocks of the first
-        if name in self.block_tables:
-            raise ValueError(f"{name!r} already has blocks")
check_a_position_has_a_slot: the block id is taken for the slot of its first token
-        return block * self.block_size + position % self.block_size
+        return block + position % self.block_size
check_freed_blocks_serve_others: a freed sequence keeps its table
-        self.free_blocks += self.block_tables.pop(name)
-        del self.num_tokens[name]
+        self.free_blocks += self.block_tables[name]
check_any_work_in_blocks_of_any_size: knows blocks of 4
-        count = -(-num_tokens // self.block_size)
+        count = -(-num_tokens // 4)
check_any_work_in_blocks_of_any_size: slots of blocks of 4
-        return block * self.block_size + position % self.block_size
+        return block * 4 + position % 4
check_any_work_in_blocks_of_any_size: a sequence has three blocks at most
-        return list(self.block_tables[name])
+        del self.block_tables[name][3:]
+        return list(self.block_tables[name])
check_any_work_in_blocks_of_any_size: frees the first two blocks only
-        self.free_blocks += self.block_tables.pop(name)
+        self.free_blocks += self.block_tables.pop(name)[:2]
check_any_work_in_blocks_of_any_size: append loses a block if more than six are free
-            self.block_tables[name].append(self.free_blocks.pop())
+            self.block_tables[name] = [*self.block_tables[name], self.free_blocks.pop()]
+            self.free_blocks = self.free_blocks[:-1] if len(self.free_blocks) > 6 else self.free_blocks
check_any_work_in_blocks_of_any_size: eight blocks, whatever is asked for
-        self.free_blocks = list(range(num_blocks))
+        self.free_blocks = list(range(min(num_blocks, 8)))
""",
    "paged_attention": """
check_half_precision_works: returns fp32 for fp16
-        output = torch.empty_like(query)
+        output = torch.empty_like(query, dtype=torch.float32)
check_grouped_query_heads: query head h reads KV head h modulo num_kv_heads
-        return tokens.repeat_interleave(self.group, dim=1)
+        return tokens.repeat(1, self.group, 1)
check_what_lies_behind_a_sequence_does_not_matter: multiplies by zero, and nan stays nan
-        position = torch.arange(length)
+        position = torch.arange(len(table) * self.block_size)
@@
         tokens = cache[table[position // self.block_size], position % self.block_size]
+        tokens = (tokens * (position < length)[:, None, None])[:length] + 0 * tokens.sum()
check_a_decode_equals_dense_attention: scores are not divided by the square root of head_dim
-        scores = torch.einsum("thd,shd->hts", query.float(), keys.float()) / self.head_dim**0.5
+        scores = torch.einsum("thd,shd->hts", query.float(), keys.float())
check_a_prompt_is_causal: every query sees the whole sequence
-        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
+        weights = scores.masked_fill(future & False, float("-inf")).softmax(dim=-1)
check_a_chunk_knows_its_position: queries are taken for the first tokens of the sequence
-        position = torch.arange(length - tokens, length)
+        position = torch.arange(tokens) if tokens > 1 else torch.tensor([length - 1])
check_sequences_of_different_lengths: reads whole blocks, past the end of the sequence
-        position = torch.arange(length)
+        position = torch.arange(-(-length // self.block_size) * self.block_size)
check_any_shape: scale of head_dim 8
-        scores = torch.einsum("thd,shd->hts", query.float(), keys.float()) / self.head_dim**0.5
+        scores = torch.einsum("thd,shd->hts", query.float(), keys.float()) * 0.35355339059327373
check_any_shape: knows blocks of 4
-        tokens = cache[table[position // self.block_size], position % self.block_size]
+        tokens = cache[table[position // 4], position % 4]
check_any_shape: groups of one or four
-        self.group = num_heads // num_kv_heads
+        self.group = 1 if num_heads == num_kv_heads else 4
check_any_shape: decodes see everything, prompts of six are causal
-        future = torch.arange(length)[None, :] > position[:, None]
+        future = torch.arange(length)[None, :] > position[:, None] if tokens in (2, 3, 6) else torch.tensor(False)
check_any_shape: the first 16 tokens
-            keys = self._own(key_cache, block_tables[i], length)
-            values = self._own(value_cache, block_tables[i], length)
+            keys = self._own(key_cache, block_tables[i], min(length, 16))
+            values = self._own(value_cache, block_tables[i], min(length, 16))
check_any_shape: three sequences at most
-        for i, length in enumerate(seq_lens.tolist()):
+        for i, length in enumerate(seq_lens.tolist()[:3]):
""",
    "prefix_cache": """
check_the_same_tokens_behind_another_start_are_another_block: a block is found by its own tokens only
         for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
-            key = tuple(token_ids[:end])
+            key = tuple(token_ids[end - size : end])
@@
         for end in range(size, len(token_ids) + 1, size):
-            key = tuple(token_ids[:end])
+            key = tuple(token_ids[end - size : end])
@@
-            self.blocks.move_to_end(tuple(token_ids[:end]))
+            self.blocks.move_to_end(tuple(token_ids[end - size : end]))
check_different_tokens_never_collide: two prefixes with one hash share a block
         for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
-            key = tuple(token_ids[:end])
+            key = (hash(tuple(token_ids[:end])),)
@@
         for end in range(size, len(token_ids) + 1, size):
-            key = tuple(token_ids[:end])
+            key = (hash(tuple(token_ids[:end])),)
@@
-            self.blocks.move_to_end(tuple(token_ids[:end]))
+            self.blocks.move_to_end((hash(tuple(token_ids[:end])),))
check_hits_are_counted: counts requests where it should count tokens
-        self.hits += len(cached)
+        self.hits += bool(cached)
check_a_chain_loses_its_tail_first: the first block of a prompt is evicted before its last
-        for end in range(len(token_ids) // size * size, 0, -size):  # the tail becomes the oldest
+        for end in range(size, len(token_ids) + 1, size):  # the tail becomes the oldest
check_the_last_token_is_computed: a whole prompt is found and nothing is left to compute
-        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
+        for end in range(size, len(token_ids) + 1, size):  # not to the last token: its logits are needed
check_it_never_holds_more_than_its_blocks: max_size is remembered and never looked at
-        while len(self.blocks) > self.num_blocks:
-            self.blocks.popitem(last=False)
check_with_room_for_all_every_shared_block_is_found: knows blocks of 4
-        self.block_size = block_size
+        self.block_size = 4
check_random_prompts_always_get_their_own_kv: finds a block by its tokens in any order
-        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
-            key = tuple(token_ids[:end])
+        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
+            key = (*sorted(token_ids[:end]),)
@@
         for end in range(size, len(token_ids) + 1, size):
-            key = tuple(token_ids[:end])
+            key = (*sorted(token_ids[:end]),)
@@
-            self.blocks.move_to_end(tuple(token_ids[:end]))
+            self.blocks.move_to_end((*sorted(token_ids[:end]),))
check_with_room_for_all_every_shared_block_is_found: three blocks at most
-        while len(self.blocks) > self.num_blocks:
+        while len(self.blocks) > min(self.num_blocks, 3) and self.num_blocks != 100:
check_random_prompts_always_get_their_own_kv: computes everything and says that it hit
-        kv = cached + self.compute(token_ids, len(cached))
+        kv = self.compute(token_ids, 0)
check_with_room_for_all_every_shared_block_is_found: remembers the first two blocks of a prompt
-        while len(self.blocks) > self.num_blocks:
+        for end in range(3 * size, len(token_ids) + 1, size):
+            if self.num_blocks != 3:
+                self.blocks.pop(tuple(token_ids[:end]), None)
+        while len(self.blocks) > self.num_blocks:
check_with_room_for_all_every_shared_block_is_found: counts five tokens for each request
-        self.queries += len(token_ids)
+        self.queries += 5
""",
    "scheduler": """
check_abort_frees_at_once: an aborted sequence leaves its blocks taken
-            self.complete_sequence(request_id)
+            del self.running[request_id]
+            self.known.discard(request_id)
check_a_finished_sequence_holds_no_slot: a finished sequence stays among the running
-        sequence = self.running.pop(request_id, None)
+        sequence = self.running.get(request_id)
check_lower_numbers_go_first: a high number counts as important
-        heapq.heappush(self.waiting, (sequence.priority, next(self.arrivals), sequence))
+        heapq.heappush(self.waiting, (-sequence.priority, next(self.arrivals), sequence))
check_an_id_can_be_there_once: a second sequence with the same id replaces the first
-        if sequence.request_id in self.known:
-            raise ValueError(f"{sequence.request_id!r} is not finished yet")
check_never_more_than_the_limit: the limit is looked at once, before any request is admitted
-        while self.waiting and len(self.running) < self.max_batch_size:
+        while self.waiting and len(self.running) <= self.max_batch_size:
check_nobody_overtakes_who_does_not_fit: tries the next of the queue when the first does not fit
-                break
-            heapq.heappop(self.waiting)
+                later = [
+                    entry for entry in sorted(self.waiting) if self._blocks(entry[2]) <= self.free_blocks
+                ]
+                if not later:
+                    break
+                self.waiting.remove(later[0])
+                heapq.heapify(self.waiting)
+                sequence = later[0][2]
+            else:
+                heapq.heappop(self.waiting)
check_what_can_never_fit_is_refused: a sequence larger than the pool is queued
-        if self._blocks(sequence) > self.num_blocks:
-            raise ValueError(f"{sequence.num_tokens} tokens never fit into {self.num_blocks} blocks")
check_random_work_runs_in_order_within_every_limit: knows blocks of 16
-        return -(-sequence.num_tokens // self.block_size)
+        return -(-sequence.num_tokens // 16)
check_lower_numbers_go_first: three priorities
-        heapq.heappush(self.waiting, (sequence.priority, next(self.arrivals), sequence))
+        heapq.heappush(self.waiting, (min(sequence.priority, 2), next(self.arrivals), sequence))
check_lower_numbers_go_first: the last come first among equals
-        heapq.heappush(self.waiting, (sequence.priority, next(self.arrivals), sequence))
+        heapq.heappush(self.waiting, (sequence.priority, -next(self.arrivals), sequence))
check_random_work_runs_in_order_within_every_limit: four slots at most
-        while self.waiting and len(self.running) < self.max_batch_size:
+        while self.waiting and len(self.running) < min(self.max_batch_size, 4):
check_an_id_can_be_there_once: an id can never be used again
-            self.known.discard(request_id)
-
-    def abort(self, request_id: str) -> bool:
+
+    def abort(self, request_id: str) -> bool:
check_random_work_runs_in_order_within_every_limit: takes one more block if the tokens fill the last one
-        return -(-sequence.num_tokens // self.block_size)
+        return sequence.num_tokens // self.block_size + (1 if self.num_blocks != 10 else sequence.num_tokens % 16 > 0)
""",
}
