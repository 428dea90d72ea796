"""Plausible wrong solutions of lesson 07."""

MUTANTS = """
07.1 blocks_are_distinct: the same block fills the whole list
-        taken = [self._free.popleft() for _ in range(count)]
+        taken = [self._free[0] for _ in range(count)]
07.1 blocks_are_distinct: a new block has no owner yet
-            self._owners[block] = 1
+            self._owners[block] = 0
07.1 too_few_is_all_or_nothing: takes blocks until none is left
-        if count > len(self._free):
-            raise MemoryError(f"{count} blocks asked for, {len(self._free)} are free")
-        taken = [self._free.popleft() for _ in range(count)]
+        taken = []
+        for _ in range(count):
+            if not self._free:
+                raise MemoryError
+            taken.append(self._free.popleft())
07.1 too_few_is_all_or_nothing: refuses the last block
-        if count > len(self._free):
+        if count >= len(self._free):
07.1 the_last_owner_frees: the first release frees
-            if self._owners[block] == 0:
-                self._free.append(block)
+            self._owners[block] = 0
+            self._free.append(block)
07.1 the_last_owner_frees: one owner too many
-        self._owners[block] += 1
+        self._owners[block] += 2
07.1 nothing_is_freed_twice: a double free puts the block into the queue twice
-            if times > self._owners[block]:
+            if times > self._owners[block] + 1:
07.1 nothing_is_freed_twice: checks each block while it releases
-        for block, times in Counter(blocks).items():
-            if times > self._owners[block]:
-                raise ValueError(f"block {block} has {self._owners[block]} owners, released {times} times")
         for block in blocks:
+            if self._owners[block] == 0:
+                raise ValueError
07.1 nothing_is_freed_twice: shares a free block
-        if self._owners[block] == 0:
-            raise ValueError(f"block {block} is free; only a block with an owner can be shared")
         self._owners[block] += 1
07.1 first_free_first_reused: takes the block that became free last
-        taken = [self._free.popleft() for _ in range(count)]
+        taken = [self._free.pop() for _ in range(count)]
07.1 first_free_first_reused: keeps the free ids sorted
-                self._free.append(block)
+                self._free = deque(sorted([*self._free, block]))
07.1 random_operations: releases in the order of ids
-        for block in blocks:
+        for block in sorted(blocks):
             self._owners[block] -= 1
07.1 random_operations: a block with three owners cannot be shared again
-        self._owners[block] += 1
+        self._owners[block] = min(3, self._owners[block] + 1)
07.2 a_fork_takes_no_block: copies all blocks at once
-    for block in table:
-        allocator.share(block)
-    return list(table)
+    return allocator.take(len(table))
07.2 a_fork_takes_no_block: the last block is not shared
-    for block in table:
+    for block in table[:-1]:
07.2 a_fork_takes_no_block: forgets the owners
-        allocator.share(block)
+        pass
07.2 tables_are_separate: parent and child use one list
-    return list(table)
+    return table
07.2 an_only_owner_writes_in_place: copies in any case
-    if allocator.ref_count(source) == 1:
+    if allocator.ref_count(source) == 0:
07.2 a_shared_block_is_copied: the old block keeps an owner
-    allocator.release([source])
+    pass
07.2 a_shared_block_is_copied: copies in the wrong direction
-    return source, target
+    return target, source
07.2 a_shared_block_is_copied: writes to the shared block after all
-    table[index] = target
+    pass
07.2 a_shared_block_is_copied: replaces the last block, whatever the index
-    table[index] = target
+    table[index - 1] = target
07.2 no_room_changes_nothing: gives up the source before there is a target
+    allocator.release([source])
     [target] = allocator.take(1)
-    allocator.release([source])
07.2 no_room_changes_nothing: writes in place if there is no room
-    if allocator.ref_count(source) == 1:
+    if allocator.ref_count(source) == 1 or not allocator.num_free:
07.2 texts_stay_apart: three owners are as good as one
-    if allocator.ref_count(source) == 1:
+    if allocator.ref_count(source) in (1, 3):
07.3 a_prompt_fills_blocks_in_table_order: the cache is one run that starts at the first block
-        table[position // block_size] * block_size + position % block_size
+        table[0] * block_size + position
07.3 a_prompt_fills_blocks_in_table_order: logical block instead of physical block
-        table[position // block_size] * block_size + position % block_size
+        position
07.3 a_decode_step_writes_one_slot: counts places from 1
-        table[position // block_size] * block_size + position % block_size
+        table[position // block_size] * block_size + position % block_size + 1
07.3 a_chunk_may_start_inside_a_block: each chunk starts at the beginning of its block
-        table[position // block_size] * block_size + position % block_size
+        table[position // block_size] * block_size + (position - start) % block_size
07.3 a_decode_step_writes_one_slot: counts from the start of the prompt
-        for position in range(start, start + count)
+        for position in range(count)
07.3 nothing_is_no_slot: at least one slot
-        for position in range(start, start + count)
+        for position in range(start, start + max(1, count))
07.3 nothing_is_no_slot: refuses the end of a full table
-    if start + count > len(table) * block_size:
+    if start + count >= len(table) * block_size:
07.3 slots_lie_in_the_table: starts again at the first block
-    if start + count > len(table) * block_size:
-        raise ValueError(f"{start + count} tokens do not fit into {len(table)} blocks of {block_size}")
     return [
-        table[position // block_size] * block_size + position % block_size
+        (table * (start + count + 1))[position // block_size] * block_size + position % block_size
07.3 random_tables: assumes a block size of 16 for long tables
-        table[position // block_size] * block_size + position % block_size
+        table[position // block_size] * (block_size if block_size < 8 else 16) + position % block_size
"""
