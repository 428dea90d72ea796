"""Plausible wrong sliding windows, each with the check that must catch it."""

MUTANTS = """
sliding-window the_window_counts_the_token_itself: frees one token late
-        end = max(0, num_computed - self._window + 1) // self._size
+        end = max(0, num_computed - self._window) // self._size
sliding-window the_window_counts_the_token_itself: frees one token early
-        end = max(0, num_computed - self._window + 1) // self._size
+        end = max(0, num_computed - self._window + 2) // self._size
sliding-window the_window_counts_the_token_itself: frees a block that is partly visible
-        end = max(0, num_computed - self._window + 1) // self._size
+        end = -(-max(0, num_computed - self._window + 1) // self._size)
sliding-window the_table_keeps_its_length: removes the blocks from the table
-        return [0] * min(end, len(table)) + table[end:], freed
+        return table[end:], freed
sliding-window the_table_keeps_its_length: frees the null block
-        freed = [block for block in table[:end] if block != 0]
+        freed = table[:end]
sliding-window random_tables_are_freed: frees one block per call
-        freed = [block for block in table[:end] if block != 0]
+        freed = [block for block in table[:end] if block != 0][-1:]
sliding-window a_hit_needs_what_the_next_token_sees: needs every block, as without a window
-        needed = max(1, -(-(self._window - 1) // self._size))
+        needed = len(found)
sliding-window a_hit_needs_what_the_next_token_sees: counts the token itself among the cached ones
-        needed = max(1, -(-(self._window - 1) // self._size))
+        needed = -(-self._window // self._size)
sliding-window a_hit_needs_what_the_next_token_sees: rounds the window down to blocks
-        needed = max(1, -(-(self._window - 1) // self._size))
+        needed = max(1, (self._window - 1) // self._size)
sliding-window the_longest_hit_counts: counts cached blocks across a gap
-            run = run + 1 if found[index] is not None else 0
+            run += found[index] is not None
sliding-window the_longest_hit_counts: takes the first hit from the left
-        for index in range((num_tokens - 1) // self._size - 1, -1, -1):
+        for index in range((num_tokens - 1) // self._size):
             run = run + 1 if found[index] is not None else 0
             if run == needed:
-                return [0] * index + [block or 0 for block in found[index : index + run]]
+                start = index + 1 - run
+                return [0] * start + [block or 0 for block in found[start : index + 1]]
sliding-window a_short_start_is_a_hit: a hit needs a whole window
-        return [block or 0 for block in found[:run]]
+        return []
sliding-window one_token_is_computed: a hit may cover all tokens
-        for index in range((num_tokens - 1) // self._size - 1, -1, -1):
+        for index in range(num_tokens // self._size - 1, -1, -1):
sliding-window random_hits: a window of one token needs no block
-        needed = max(1, -(-(self._window - 1) // self._size))
+        needed = -(-(self._window - 1) // self._size)
sliding-window most_blocks_at_once: forgets that a window may begin inside a block
-        return min(-(-num_tokens // self._size), -(-(visible - 1) // self._size) + 1)
+        return min(-(-num_tokens // self._size), -(-visible // self._size))
sliding-window most_blocks_at_once: adds a block even if the window is aligned, as vLLM's bound does
-        return min(-(-num_tokens // self._size), -(-(visible - 1) // self._size) + 1)
+        return min(-(-num_tokens // self._size), -(-visible // self._size) + 1)
sliding-window most_blocks_at_once: forgets the tokens of the step
-        visible = self._window - 1 + chunk
+        visible = self._window
sliding-window the_scheduler_runs_on_it: frees nothing before half a window more is computed
-        end = max(0, num_computed - self._window + 1) // self._size
+        end = max(0, num_computed - self._window - self._window // 2) // self._size
"""
