"""Plausible wrong host tiers, each with the check that must catch it."""

MUTANTS = """
swap-tier found_when_the_copy_has_ended: readable as soon as the copy begins
-            if block is None or block in self.writing:
+            if block is None:
swap-tier found_when_the_copy_has_ended: every copy ends with the first
-        self.writing.remove(block)
+        self.writing.clear()
swap-tier the_host_continues_the_prefix: the search begins at the first block
-        for block_hash in hashes[start:]:
+        for block_hash in hashes:
swap-tier the_host_continues_the_prefix: blocks behind a gap are found
-            if block is None or block in self.writing:
-                break
+            if block is None or block in self.writing:
+                continue
swap-tier the_host_continues_the_prefix: one block is left to compute
-        for block_hash in hashes[start:]:
+        for block_hash in hashes[start:-1]:
swap-tier nothing_is_copied_twice: the old copy is forgotten
-        if block_hash in self.block_of:
-            self.block_of.move_to_end(block_hash)
-            return None
+        pass
swap-tier nothing_is_copied_twice: the readable block is returned again
-            self.block_of.move_to_end(block_hash)
-            return None
+            self.block_of.move_to_end(block_hash)
+            return self.block_of[block_hash]
swap-tier empty_blocks_come_first: one block stays empty
-        if self.empty:
+        if len(self.empty) > 1 or not self.block_of:
swap-tier the_least_recently_used_is_replaced: first in, first out
-            self.block_of.move_to_end(self.hash_of[block])
+            pass
swap-tier the_least_recently_used_is_replaced: a second eviction is no use
-            self.block_of.move_to_end(block_hash)
-            return None
+            return None
swap-tier the_least_recently_used_is_replaced: the most recently used is replaced
-        for block_hash, block in self.block_of.items():
+        for block_hash, block in reversed(self.block_of.items()):
swap-tier the_least_recently_used_is_replaced: the lost hash is still found
-                del self.block_of[block_hash]
-                return block
+                return block
swap-tier the_end_of_a_prefix_goes_first: the start of a prefix is replaced first
-        for block in reversed(blocks):
+        for block in blocks:
swap-tier the_end_of_a_prefix_goes_first: only the first block of a load is used
-            self.block_of.move_to_end(self.hash_of[block])
+            if block == blocks[0]:
+                self.block_of.move_to_end(self.hash_of[block])
swap-tier a_read_block_is_not_replaced: reading does not protect
-            if block not in self.writing and block not in self.readers:
+            if block not in self.writing:
swap-tier a_read_block_is_not_replaced: the first of two loads ends the protection
-        self.readers -= Counter(blocks)
+        for block in blocks:
+            del self.readers[block]
swap-tier a_read_block_is_not_replaced: only the oldest block is looked at
-            if block not in self.writing and block not in self.readers:
+            if block in self.writing or block in self.readers:
+                return None
+            else:
swap-tier a_written_block_is_not_replaced: writing does not protect
-            if block not in self.writing and block not in self.readers:
+            if block not in self.readers:
swap-tier the_end_of_a_copy_is_no_use: a write counts when it ends
-        self.writing.remove(block)
+        self.writing.remove(block)
+        self.block_of.move_to_end(self.hash_of[block])
swap-tier the_end_of_a_copy_is_no_use: a load counts when it ends
-        self.readers -= Counter(blocks)
+        self.readers -= Counter(blocks)
+        for block in reversed(blocks):
+            self.block_of.move_to_end(self.hash_of[block])
swap-tier a_failed_copy_leaves_nothing: a failure is a success
-        if not ok:
+        if ok is None:
swap-tier a_failed_copy_leaves_nothing: the block is lost
-            self.empty.append(block)
+            pass
swap-tier wrong_calls_are_refused: a block that is being written is loaded
-            if block not in self.hash_of or block in self.writing:
+            if block not in self.hash_of:
swap-tier wrong_calls_are_refused: half of a refused load is kept
-        for block in blocks:
-            if block not in self.hash_of or block in self.writing:
-                raise ValueError(f"block {block} is not readable")
-        for block in reversed(blocks):
+        for block in blocks:
+            if block not in self.hash_of or block in self.writing:
+                raise ValueError(f"block {block} is not readable")
swap-tier wrong_calls_are_refused: a load ends that never began
-            if block not in self.readers:
-                raise ValueError(f"block {block} is not being read")
+            pass
swap-tier random_calls: match is a use
-            found.append(block)
+            found.append(block)
+            self.block_of.move_to_end(block_hash)
swap-tier random_calls: a failed copy counts as free and as written
-        self.writing.remove(block)
-        if not ok:
+        if ok:
+            self.writing.remove(block)
+        else:
swap-tier the_engine_offloads_to_it: a replaced block keeps its old hash too
-                del self.block_of[block_hash]
-                return block
+                return block
swap-tier the_engine_offloads_to_it: a block is replaced while a load reads it
-        for block_hash, block in self.block_of.items():
-            if block not in self.writing and block not in self.readers:
+        for block_hash, block in self.block_of.items():
+            if block in self.readers or (not self.readers and block not in self.writing):
swap-tier the_engine_offloads_to_it: the newest content goes first
-        for block_hash, block in self.block_of.items():
+        for block_hash, block in reversed(self.block_of.items()):
"""
