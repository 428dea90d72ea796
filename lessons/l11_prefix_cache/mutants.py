"""Plausible wrong solutions of lesson 11."""

MUTANTS = """
11.1 only_full_blocks_have_a_hash: hashes the partial block at the end
-    for start in range(0, len(token_ids) - block_size + 1, block_size):
+    for start in range(0, len(token_ids), block_size):
11.1 only_full_blocks_have_a_hash: leaves out the last block
-    for start in range(0, len(token_ids) - block_size + 1, block_size):
+    for start in range(0, len(token_ids) - block_size, block_size):
11.1 a_hash_covers_all_tokens_before: hashes each block alone
-        parent = sha256(b"block" + parent + block).digest()
-        hashes.append(parent)
+        hashes.append(sha256(b"block" + parent + block).digest())
11.1 a_hash_covers_all_tokens_before: looks at the first token of a block only
-        block = array("q", token_ids[start : start + block_size]).tobytes()  # 8 bytes per token
+        block = token_ids[start].to_bytes(8, "little")
11.1 equal_prefixes_have_equal_hashes: the length of the prompt is part of the root
-    parent = sha256(b"salt" + salt).digest()  # tagged: no salt can imitate a block
+    parent = sha256(b"salt" + salt + bytes(token_ids[-1:] and [token_ids[-1] % 251])).digest()
11.1 equal_blocks_differ_by_place: the chain is only the number of the block's tokens
-        parent = sha256(b"block" + parent + block).digest()
+        parent = sha256(b"block" + salt + block).digest()
11.1 different_tokens_never_collide: joins decimal digits
-        block = array("q", token_ids[start : start + block_size]).tobytes()  # 8 bytes per token
+        block = b"".join(str(token).encode() for token in token_ids[start : start + block_size])
11.1 different_tokens_never_collide: 32 bits per token
-        block = array("q", token_ids[start : start + block_size]).tobytes()  # 8 bytes per token
+        block = b"".join((token % 2**32).to_bytes(4, "little") for token in token_ids[start : start + block_size])
11.1 different_tokens_never_collide: sorts the tokens of a block
-        block = array("q", token_ids[start : start + block_size]).tobytes()  # 8 bytes per token
+        block = b"".join(token.to_bytes(8, "little") for token in sorted(token_ids[start : start + block_size]))
11.1 a_salt_separates: ignores the salt
-    parent = sha256(b"salt" + salt).digest()  # tagged: no salt can imitate a block
+    parent = sha256(b"salt").digest()
11.1 a_salt_separates: salts only the first block
-        parent = sha256(b"block" + parent + block).digest()
-        hashes.append(parent)
+        hashes.append(sha256(b"block" + parent + block).digest())
+        parent = sha256(b"".join(token.to_bytes(8, "little") for token in token_ids[: start + block_size])).digest()
11.1 a_salt_cannot_continue_a_chain: the salt takes the place of a parent
-    parent = sha256(b"salt" + salt).digest()  # tagged: no salt can imitate a block
+    parent = salt
11.2 the_longest_known_prefix_matches: returns all known blocks
-            if block_hash not in self._block_of:
-                break
-            blocks.append(self._block_of[block_hash])
+            if block_hash in self._block_of:
+                blocks.append(self._block_of[block_hash])
11.2 the_longest_known_prefix_matches: all or nothing
-                break
+                return []
11.2 the_first_block_stays: the last one wins
+            self._block_of[block_hash] = block
             return False
         self._block_of[block_hash] = block
11.2 the_first_block_stays: returns True for a known hash
-            return False
+            return True
11.2 an_owned_block_is_not_evicted: a new block is evictable at once
         self._hash_of[block] = block_hash
+        self._evictable[block] = None
         return True
11.2 an_owned_block_is_not_evicted: touch only renews the place in the queue
-        self._evictable.pop(block, None)
+        if block in self._evictable:
+            self._evictable[block] = self._evictable.pop(block)

     def release(self, block: int) -> None:
11.2 least_recently_released_goes_first: evicts the most recently released
-        block = next(iter(self._evictable))
+        block = next(reversed(self._evictable))
11.2 least_recently_released_goes_first: evicts in order of insertion
-        block = next(iter(self._evictable))
+        block = next(each for each in self._hash_of if each in self._evictable)
11.2 least_recently_released_goes_first: match counts as a use
             blocks.append(self._block_of[block_hash])
+            if blocks[-1] in self._evictable:
+                self._evictable[blocks[-1]] = self._evictable.pop(blocks[-1])
11.2 an_evicted_block_is_forgotten: keeps the hash
-        del self._evictable[block], self._block_of[self._hash_of.pop(block)]
+        del self._evictable[block]
11.2 an_evicted_block_is_forgotten: release takes any block
-        if block in self._hash_of:
-            self._evictable.pop(block, None)
-            self._evictable[block] = None
+        self._evictable.pop(block, None)
+        self._evictable[block] = None
11.2 any_sequence_equals_the_oracle: a second release keeps the old place
-            self._evictable.pop(block, None)
-            self._evictable[block] = None
+            self._evictable.setdefault(block, None)
11.2 any_sequence_equals_the_oracle: len counts evictable blocks only
-        return len(self._block_of)
+        return len(self._evictable)
11.2 hits_equal_the_engines: evicts the smallest block id
-        block = next(iter(self._evictable))
+        block = min(self._evictable)
11.3 the_first_prompt_is_cold: enters a prompt before it looks
+        seen.update(prefixes)
         hits.append(sum(block_size for prefix in usable if prefix in seen))
-        seen.update(prefixes)
11.3 hits_are_full_blocks: counts every common token
-        prefixes = [tuple(prompt[:end]) for end in range(block_size, len(prompt) + 1, block_size)]
+        prefixes = [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]
         usable = [prefix for prefix in prefixes if len(prefix) < len(prompt)]
-        hits.append(sum(block_size for prefix in usable if prefix in seen))
+        hits.append(sum(1 for prefix in usable if prefix in seen))
11.3 one_token_is_always_computed: a repeated prompt is a hit as a whole
-        usable = [prefix for prefix in prefixes if len(prefix) < len(prompt)]
+        usable = prefixes
11.3 one_token_is_always_computed: the last full block is never shared
-        prefixes = [tuple(prompt[:end]) for end in range(block_size, len(prompt) + 1, block_size)]
+        prefixes = [tuple(prompt[:end]) for end in range(block_size, len(prompt), block_size)]
11.3 the_longest_earlier_prefix_counts: remembers the last prompt only
-        seen.update(prefixes)
+        seen = set(prefixes)
11.3 the_longest_earlier_prefix_counts: shares equal blocks wherever they are
-        prefixes = [tuple(prompt[:end]) for end in range(block_size, len(prompt) + 1, block_size)]
-        usable = [prefix for prefix in prefixes if len(prefix) < len(prompt)]
+        ends = range(block_size, len(prompt) + 1, block_size)
+        prefixes = [tuple(prompt[end - block_size : end]) for end in ends]
+        usable = prefixes[: (len(prompt) - 1) // block_size]
11.3 hits_of_100_workloads: remembers only the longest prefix of each prompt
-        seen.update(prefixes)
+        seen.update(prefixes[-1:])
11.3 a_large_engine_hits_the_same: rounds up to the next block
-        hits.append(sum(block_size for prefix in usable if prefix in seen))
+        found = sum(block_size for prefix in usable if prefix in seen)
+        hits.append(found + block_size if 0 < found < len(prompt) - block_size else found)
"""
