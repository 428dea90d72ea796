"""Plausible wrong prefix caches, each with the check that must catch it."""

MUTANTS = """
prefix-cache a_hash_covers_all_before: hashes each block alone
-            parent = sha256(parent + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()
-            found.append(parent)
+            found.append(sha256(parent + b"".join(token.to_bytes(8, "little") for token in tokens)).digest())
prefix-cache a_hash_covers_all_before: joins the digits of the tokens
-            parent = sha256(parent + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()
+            parent = sha256(parent + "".join(map(str, tokens)).encode()).digest()
prefix-cache a_hash_covers_all_before: hashes a partial block, too
-        for start in range(0, len(token_ids) - self._size + 1, self._size):
+        for start in range(0, len(token_ids), self._size):
prefix-cache salt_and_adapter_separate: joins salt and adapter without a border
-        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
+        parent = sha256(f"{salt}{adapter}".encode()).digest()
prefix-cache salt_and_adapter_separate: no salt is the salt "None"
-        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
+        parent = sha256(repr((str(salt), str(adapter))).encode()).digest()
prefix-cache salt_and_adapter_separate: forgets the adapter
-        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
+        parent = sha256(repr(salt).encode()).digest()
prefix-cache a_hit_is_a_prefix: skips a block that is missing
-            if each not in self._block_of:
-                break
-            found.append(self._block_of[each])
+            if each in self._block_of:
+                found.append(self._block_of[each])
prefix-cache one_token_is_computed: a hit may cover the whole prompt
-        for each in hashes[: (num_tokens - 1) // self._size]:
+        for each in hashes:
prefix-cache one_token_is_computed: always leaves the last full block
-        for each in hashes[: (num_tokens - 1) // self._size]:
+        for each in hashes[:-1]:
prefix-cache all_or_nothing: counts the free blocks of the hit as fresh ones
-        if count > len(self._free) - revived:
+        if count > len(self._free):
prefix-cache all_or_nothing: subtracts owned blocks of the hit, too
-        if count > len(self._free) - revived:
+        if count > len(self._free) - len(hit) + 0 * revived:
prefix-cache all_or_nothing: shares the hit before it looks for room
-        if count > len(self._free) - revived:
-            return None
         for block in hit:
             self._free.pop(block, None)
             self._owners[block] += 1
+        if count > len(self._free):
+            return None
prefix-cache all_or_nothing: match makes the blocks of a refused request recent
             found.append(self._block_of[each])
+            if found[-1] in self._free:
+                self._free.move_to_end(found[-1])
prefix-cache a_hit_is_not_evicted: takes fresh blocks before it shares the hit
+        taken = [self._take() for _ in range(count)]
         for block in hit:
             self._free.pop(block, None)
             self._owners[block] += 1
-        return [self._take() for _ in range(count)]
+        return taken
prefix-cache a_hit_is_not_evicted: the first owner that ends frees a shared block
-            self._owners[block] -= 1
+            self._owners[block] = 0
prefix-cache evicted_in_order: the start of a prefix goes first
-        for block in reversed(table):
+        for block in table:
prefix-cache evicted_in_order: evicts the most recently used block
                 self._free[block] = None
-                if self._hash_of[block] is None:
-                    self._free.move_to_end(block, last=False)
+                self._free.move_to_end(block, last=False)
prefix-cache evicted_in_order: a block without a hash waits behind cached ones
-                if self._hash_of[block] is None:
-                    self._free.move_to_end(block, last=False)
prefix-cache evicted_in_order: an evicted block stays in the index
-        if (old := self._hash_of[block]) is not None:
-            del self._block_of[old]
-            self._hash_of[block] = None
+        self._hash_of[block] = None
prefix-cache one_block_per_hash: the second block replaces the first
-        if block_hash in self._block_of:
-            return False
prefix-cache one_block_per_hash: the second block gets the hash, too
         if block_hash in self._block_of:
+            self._hash_of[block] = block_hash
             return False
prefix-cache a_second_release_is_refused: owners become negative
-        if any(self._owners[block] == 0 for block in table):
-            raise ValueError(f"a block of {table} has no owner")
prefix-cache a_second_release_is_refused: notices the mistake halfway
-        if any(self._owners[block] == 0 for block in table):
-            raise ValueError(f"a block of {table} has no owner")
-        for block in reversed(table):
+        for block in table:
+            if self._owners[block] == 0:
+                raise ValueError(f"{block} has no owner")
             self._owners[block] -= 1
prefix-cache random_requests: a hit of three blocks or more gives the last one no owner
-        for block in hit:
+        for block in hit[: max(2, len(hit) - 1)]:
             self._free.pop(block, None)
prefix-cache the_kv_manager_runs_on_it: forgets all hashes when memory is nearly full
         block, _ = self._free.popitem(last=False)
+        if len(self._free) < 3:
+            self._block_of.clear()
+            self._hash_of = [None] * len(self._owners)
prefix-cache all_bits_of_a_token_count: tokens are cut to 32 bits
-            parent = sha256(parent + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()
+            cut = [token & 0xFFFFFFFF for token in tokens]
+            parent = sha256(parent + b"".join(token.to_bytes(8, "little") for token in cut)).digest()
prefix-cache all_bits_of_a_token_count: tokens become floats
-            parent = sha256(parent + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()
+            parent = sha256(parent + ",".join(str(float(token)) for token in tokens).encode()).digest()
prefix-cache no_border_can_be_forged: joined by a colon
-        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
+        joined = f"{salt is None}{adapter is None}{salt}:{adapter}"
+        parent = sha256(joined.encode("utf-8", "surrogatepass")).digest()
prefix-cache no_border_can_be_forged: joined by the unit separator
-        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
+        joined = f"{salt is None}{adapter is None}{salt}\x1f{adapter}"
+        parent = sha256(joined.encode("utf-8", "surrogatepass")).digest()
prefix-cache no_border_can_be_forged: quotes that are not escaped
-        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
+        quoted = [each if each is None else f"'{each}'" for each in (salt, adapter)]
+        parent = sha256(f"({quoted[0]}, {quoted[1]})".encode("utf-8", "surrogatepass")).digest()
prefix-cache any_string_is_a_salt: strict UTF-8
-        parent = sha256(repr((salt, adapter)).encode("utf-8", "surrogatepass")).digest()
+        parts = [b"-" if each is None else b"+" + each.encode() for each in (salt, adapter)]
+        parent = sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
prefix-cache a_hash_covers_all_before: a short digest
-            found.append(parent)
+            found.append(parent[:8])
prefix-cache a_hit_alone_gets_owners: a hit of a request that takes no block gets no owner
-        for block in hit:
+        for block in hit if count else []:
prefix-cache a_hit_is_not_evicted: a fresh block has no owner
-        self._owners[block] = 1
+        self._owners[block] = 0
prefix-cache all_or_nothing: hands out the null block
-        self._free = OrderedDict.fromkeys(range(1, num_blocks))  # the first is taken next
+        self._free = OrderedDict.fromkeys(range(num_blocks))  # the first is taken next
"""
