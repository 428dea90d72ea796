"""Plausible wrong tiers, each with the check that must catch it."""

MUTANTS = """
swap-tier stored_is_found_after_its_step: content is found while it is being copied
         self.stored.setdefault(step, []).append((block, block_hash))
+        self.content[block], self.block_of[block_hash] = block_hash, block
swap-tier stored_is_found_after_its_step: a block that is written counts as free
-        return len(self.empty) + len(self.idle)
+        return len(self.empty) + len(self.idle) + len(self.writing)
swap-tier stored_is_found_after_its_step: a step publishes what a later one stores
-        for each in sorted(number for number in {*self.stored, *self.loaded} if number <= step):
+        for each in sorted({*self.stored, *self.loaded}):
@@
-                if each == step:
+                if each >= step:
swap-tier a_hit_spans_both_tiers: the host is asked for the whole chain
-        for each in hashes[start:]:
+        for each in hashes:
swap-tier a_hit_spans_both_tiers: gaps are skipped
-                break
+                continue
             found.append(block)
swap-tier a_hit_spans_both_tiers: all device blocks are counted
-        start = 0
-        while start < len(hashes) and hashes[start] in device:
-            start += 1
+        start = sum(each in device for each in hashes)
swap-tier a_hit_spans_both_tiers: a device block in the middle ends the hit
         for each in hashes[start:]:
+            if each in device:
+                break
swap-tier content_is_stored_once: content on the host is stored again
-        if block_hash in self.block_of or block_hash in self.writing or not self.num_free:
+        if block_hash in self.writing or not self.num_free:
swap-tier content_is_stored_once: content that is being stored is stored again
-        if block_hash in self.block_of or block_hash in self.writing or not self.num_free:
+        if block_hash in self.block_of or not self.num_free:
swap-tier content_is_stored_once: an offer of known content is a use
+        if self.block_of.get(block_hash) in self.idle:
+            self.idle.move_to_end(self.block_of[block_hash])
         if block_hash in self.block_of or block_hash in self.writing or not self.num_free:
swap-tier reused_in_order: the newest content goes first
-            block, _ = self.idle.popitem(last=False)
+            block, _ = self.idle.popitem()
swap-tier reused_in_order: content is reused before an empty block
-        if self.empty:
+        if self.empty and not self.idle:
swap-tier reused_in_order: the old content can still be found
-            del self.block_of[self.content.pop(block)]
+            self.block_of[self.content.pop(block)] = block
swap-tier the_end_of_a_chain_goes_first: the start of a chain is reused first
+            stored.reverse()
             for block in [*(block for block, _ in stored), *reversed(self.loaded.pop(each, []))]:
swap-tier a_load_is_a_use: first stored, first out
         for block in blocks:
-            self.idle.pop(block, None)
             self.pins[block] += 1
         self.loaded.setdefault(step, []).extend(blocks)
swap-tier a_load_is_a_use: the start of a hit is reused before its end
-            for block in [*(block for block, _ in stored), *reversed(self.loaded.pop(each, []))]:
+            for block in [*(block for block, _ in stored), *self.loaded.pop(each, [])]:
swap-tier a_load_is_a_use: loads become free before stores
-            for block in [*(block for block, _ in stored), *reversed(self.loaded.pop(each, []))]:
+            for block in [*reversed(self.loaded.pop(each, [])), *(block for block, _ in stored)]:
swap-tier a_look_is_no_use: match refreshes what it finds
             found.append(block)
+            if block in self.idle:
+                self.idle.move_to_end(block)
swap-tier a_pinned_block_stays: a block that is read can be reused
         for block in blocks:
-            self.idle.pop(block, None)
+            self.idle[block] = None
             self.pins[block] += 1
         self.loaded.setdefault(step, []).extend(blocks)
swap-tier a_pinned_block_stays: a pin is a flag
             self.idle.pop(block, None)
-            self.pins[block] += 1
+            self.pins[block] = 1
swap-tier a_pinned_block_stays: a full tier raises
-        if block_hash in self.block_of or block_hash in self.writing or not self.num_free:
+        if block_hash in self.block_of or block_hash in self.writing:
swap-tier a_failed_step_leaves_nothing: a failed step publishes
-                if each == step:
+                if each <= step:
swap-tier a_failed_step_leaves_nothing: a failed step keeps its pins
-        for each in sorted(number for number in {*self.stored, *self.loaded} if number <= step):
+        for each in sorted(number for number in {*self.stored, *self.loaded} if number == step):
swap-tier a_failed_step_leaves_nothing: what failed can never be stored again
-                self.writing.discard(block_hash)
                 if each == step:
+                    self.writing.discard(block_hash)
swap-tier a_failed_step_leaves_nothing: the newest failed step is dropped first
-        for each in sorted(number for number in {*self.stored, *self.loaded} if number <= step):
+        for each in sorted((number for number in {*self.stored, *self.loaded} if number <= step), reverse=True):
swap-tier only_content_is_read: any block is pinned
-        if any(block not in self.content for block in blocks):
+        if any(block not in range(1, 1 << 30) for block in blocks):
swap-tier only_content_is_read: pinned before it is checked
+        for block in blocks:
+            self.idle.pop(block, None)
         if any(block not in self.content for block in blocks):
swap-tier random_copies: a second pin of a step is lost when the first step ends
-        self.pins[block] -= 1
+        self.pins[block] -= 1 if self.pins[block] < 3 else 2
         if self.pins[block]:
             return
swap-tier the_kv_manager_runs_on_it: only the last store of a step is published
-                if each == step:
+                if each == step and (block, block_hash) == stored[-1]:
swap-tier failed_steps_end_in_order: failed steps in the order in which they began
-        for each in sorted(number for number in {*self.stored, *self.loaded} if number <= step):
+        for each in [number for number in dict.fromkeys([*self.stored, *self.loaded]) if number <= step]:
swap-tier failed_steps_end_in_order: the loads of a failed step from the first to the last
-            for block in [*(block for block, _ in stored), *reversed(self.loaded.pop(each, []))]:
+            loads = self.loaded.pop(each, [])
+            for block in [*(block for block, _ in stored), *(reversed(loads) if each == step else loads)]:
swap-tier stored_is_found_after_its_step: one block fewer
-        self.empty = list(range(num_blocks, 0, -1))
+        self.empty = list(range(num_blocks - 1, 0, -1))
swap-tier a_failed_step_leaves_nothing: a step without copies is an error
+        if step not in self.stored and step not in self.loaded:
+            raise ValueError(step)
         for each in sorted(number for number in {*self.stored, *self.loaded} if number <= step):
"""
