"""Plausible wrong block managers, each with the check that must catch it."""

MUTANTS = """
block-manager blocks_are_distinct: hands out the null block
-        self._free = deque(range(1, num_blocks))
+        self._free = deque(range(num_blocks))
block-manager a_table_grows_by_blocks: one block per token
-        missing = max(0, -(-num_tokens // self._block_size) - held)
+        missing = max(0, num_tokens - held)
block-manager a_table_grows_by_blocks: rounds down
-        missing = max(0, -(-num_tokens // self._block_size) - held)
+        missing = max(0, num_tokens // self._block_size - held)
block-manager a_table_grows_by_blocks: one block early at a full block
-        missing = max(0, -(-num_tokens // self._block_size) - held)
+        missing = max(0, num_tokens // self._block_size + 1 - held)
block-manager all_or_nothing: keeps the blocks that were free
-        if missing > len(self._free):
-            return None
-        taken = [self._take() for _ in range(missing)]
+        enough = missing <= len(self._free)
+        taken = [self._take() for _ in range(min(missing, len(self._free)))]
         self._tables.setdefault(request, []).extend(taken)
-        return taken
+        return taken if enough else None
block-manager all_or_nothing: refuses the last free block
-        if missing > len(self._free):
+        if missing >= len(self._free) > 0:
block-manager a_fork_takes_no_block: copies the whole table at once
-        for block in table:
-            self._owners[block] += 1
-        self._tables[child] = list(table)
+        self._tables[child] = [self._take() for _ in table]
block-manager a_fork_takes_no_block: parent and child share one list
-        self._tables[child] = list(table)
+        self._tables[child] = table
block-manager a_shared_block_is_copied: writes into a shared block
-        if self._owners[old] == 1:
+        if self._owners[old] >= 1:
block-manager a_shared_block_is_copied: copies the last block, whatever the position
-        index = position // self._block_size
+        index = len(table) - 1
block-manager a_shared_block_is_copied: returns (new, old)
-        return old, new
+        return new, old
block-manager the_last_owner_writes_in_place: the old block keeps its owner
-        self._owners[old] -= 1
         table[index] = new
block-manager no_room_for_a_copy_changes_nothing: drops the owner first
+        self._owners[old] -= 1
         if not self._free:
             raise MemoryError("no block is free for the copy")
         new = self._take()
-        self._owners[old] -= 1
block-manager the_last_owner_frees: the first owner frees
-            self._owners[block] -= 1
-            if self._owners[block] == 0:
-                self._free.append(block)
+            self._owners[block] = 0
+            self._free.append(block)
block-manager the_last_owner_frees: shared blocks are never freed
-            self._owners[block] -= 1
-            if self._owners[block] == 0:
+            if self._owners[block] == 1:
+                self._owners[block] = 0
                 self._free.append(block)
block-manager mistakes_are_refused: frees an unknown request silently
-        for block in self._tables.pop(request):
+        for block in self._tables.pop(request, []):
block-manager mistakes_are_refused: a fork overwrites a table
-        if child in self._tables:
-            raise ValueError(f"{child!r} has a table already")
block-manager random_families: the last block of a longer table gets no second owner
-            self._owners[block] += 1
+            self._owners[block] += block != table[-1] or len(table) == 1
block-manager the_scheduler_runs_on_it: a preempted request keeps its table
-        for block in self._tables.pop(request):
+        for block in self._tables[request]:
block-manager num_free_needs_no_search: counts the owners of all blocks
-        return len(self._free)
+        return self._owners[1:].count(0)
block-manager num_free_needs_no_search: looks for blocks in the tables
-        return len(self._free)
+        return len(set(range(1, len(self._owners))).difference(*self._tables.values()))
block-manager a_table_grows_by_blocks: returns the whole table
         self._tables.setdefault(request, []).extend(taken)
-        return taken
+        return list(self._tables[request])
block-manager a_table_grows_by_blocks: gives blocks back when fewer tokens are asked for
         if missing > len(self._free):
             return None
+        for block in self._tables.get(request, [])[-(-num_tokens // self._block_size) :]:
+            self._tables[request].remove(block)
+            self._owners[block] -= 1
+            if self._owners[block] == 0:
+                self._free.append(block)
block-manager a_table_is_a_copy: the table itself
-        return list(self._tables.get(request, ()))
+        return self._tables.get(request, [])
block-manager no_tokens_make_an_empty_table: a request without blocks has no table
-        self._tables.setdefault(request, []).extend(taken)
+        if taken:
+            self._tables.setdefault(request, []).extend(taken)
         return taken
block-manager mistakes_are_refused: an unknown parent has an empty table
-        table = self._tables[parent]
+        table = self._tables.get(parent, [])
block-manager mistakes_are_refused: a position before the start counts from the end
-        if not 0 <= position < len(table) * self._block_size:
+        if not position < len(table) * self._block_size:
"""
