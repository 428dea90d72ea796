"""Plausible wrong encoder caches, each with the check that must catch it."""

MUTANTS = """
encoder-cache a_content_is_encoded_once: freed as soon as it has no owner
-                self.idle[mm_hash] = None
+                self.num_cached -= self.size.pop(mm_hash)
+                self.evicted[mm_hash] = None
encoder-cache a_content_is_encoded_once: each request has entries of its own
-            if mm_hash not in self.size:
+            if (request_id, offset) not in self.owners[mm_hash]:
encoder-cache an_image_owns_until_it_is_computed: released when its first token is computed
-            if offset + size <= num_computed:
+            if offset < num_computed:
encoder-cache an_image_owns_until_it_is_computed: the last token is still awaited
-            if offset + size <= num_computed:
+            if offset + size < num_computed:
encoder-cache a_chunk_ends_before_what_does_not_fit: a chunk with an image without room is given up
-                return max(0, offset - start)
+                return 0
encoder-cache a_chunk_ends_before_what_does_not_fit: entries without owners take room
-        room, counted = self.num_free, set()
+        room, counted = self.capacity - self.num_cached, set()
encoder-cache a_chunk_ends_before_what_does_not_fit: each image is compared with all the room
-            room -= size
             counted.add(mm_hash)
encoder-cache a_chunk_ends_before_what_does_not_fit: an image that is not read counts
-        return [image for image in self.images[request_id] if image[1] < end and start < image[1] + image[2]]
+        return [image for image in self.images[request_id] if image[1] <= end and start < image[1] + image[2]]
encoder-cache it_waits_at_an_image: only an image's first token reads it
-        return [image for image in self.images[request_id] if image[1] < end and start < image[1] + image[2]]
+        return [image for image in self.images[request_id] if start <= image[1] < end]
encoder-cache it_waits_at_an_image: a negative number of tokens
-                return max(0, offset - start)
+                return offset - start
encoder-cache it_waits_at_an_image: at least one token always fits
-                return max(0, offset - start)
+                return max(1, offset - start)
encoder-cache each_content_counts_once: a content that another request owns takes room again
-            if mm_hash in self.owners or mm_hash in counted:
+            if mm_hash in counted:
encoder-cache each_content_counts_once: a content that is read twice takes room twice
-            if mm_hash in self.owners or mm_hash in counted:
+            if mm_hash in self.owners:
encoder-cache each_content_counts_once: idle entries that the chunk reads take no room
-            if mm_hash in self.owners or mm_hash in counted:
+            if mm_hash in self.size or mm_hash in counted:
encoder-cache the_longest_without_owner_is_evicted: the newest goes first
-            mm_hash, _ = self.idle.popitem(last=False)
+            mm_hash, _ = self.idle.popitem()
encoder-cache the_longest_without_owner_is_evicted: first encoded, first evicted
-            mm_hash, _ = self.idle.popitem(last=False)
+            mm_hash = next(each for each in self.size if each in self.idle)
+            del self.idle[mm_hash]
encoder-cache the_longest_without_owner_is_evicted: all that can be evicted is
-        while self.num_cached + sum(created.values()) > self.capacity:
+        while self.idle and created and self.num_cached + sum(created.values()) + len(self.evicted) > self.capacity:
encoder-cache in_order_of_position: the end of a prompt is evicted first
-        for mm_hash, offset, size in self.images.get(request_id, []):
+        for mm_hash, offset, size in reversed(self.images.get(request_id, [])):
             if offset + size <= num_computed:
encoder-cache in_order_of_position: new hashes sorted by name
-        return list(created)
+        return sorted(created)
encoder-cache a_look_is_no_use: fit evicts to make room
             room -= size
             counted.add(mm_hash)
+            while mm_hash not in self.size and self.num_cached + size > self.capacity and self.idle:
+                gone, _ = self.idle.popitem(last=False)
+                self.num_cached -= self.size.pop(gone)
+                self.evicted[gone] = None
encoder-cache a_look_is_no_use: fit refreshes what it finds
             room -= size
             counted.add(mm_hash)
+            if mm_hash in self.idle:
+                self.idle.move_to_end(mm_hash)
encoder-cache a_row_keeps_what_it_reads: image by image, so a new one evicts a later one
             if mm_hash not in self.size:
                 created[mm_hash] = size
+                while self.num_cached + sum(created.values()) > self.capacity:
+                    gone, _ = self.idle.popitem(last=False)
+                    self.num_cached -= self.size.pop(gone)
+                    self.evicted[gone] = None
             self.idle.pop(mm_hash, None)
encoder-cache twice_in_one_prompt: the owner is the request
-            self.owners[mm_hash].add((request_id, offset))
+            self.owners[mm_hash].add((request_id, 0))
@@
-        if (request_id, offset) in owners:
-            owners.remove((request_id, offset))
+        if (request_id, 0) in owners:
+            owners.remove((request_id, 0))
encoder-cache the_worker_is_told_once: hashes are named in every call
-        found, self.evicted = list(self.evicted), {}
+        found = list(self.evicted)
encoder-cache the_worker_is_told_once: the worker drops what was encoded again
-            self.evicted.pop(mm_hash, None)
+            self.evicted.setdefault(mm_hash, None)
encoder-cache a_removed_request_owns_nothing: a preempted request keeps its entries
-        for mm_hash, offset, _ in self.images.pop(request_id, []):
-            self._let_go(request_id, mm_hash, offset)
+        self.images.pop(request_id, [])
encoder-cache a_removed_request_owns_nothing: it takes the entries of all owners with it
-            owners.remove((request_id, offset))
+            owners.clear()
encoder-cache wrong_calls_are_refused: an image that can never fit is accepted
-        if any(size > self.capacity for _, _, size in images):
+        if any(size > 10**9 for _, _, size in images):
encoder-cache wrong_calls_are_refused: an id twice
-        if request_id in self.images:
-            raise ValueError(f"request {request_id!r} is registered")
+        self.images.pop(request_id, None)
encoder-cache wrong_calls_are_refused: a row takes more than fits
-        if self.fit(request_id, start, count) < count:
+        if self.fit(request_id, start, count) < 0:
encoder-cache random_requests: a third owner is lost
-            self.owners[mm_hash].add((request_id, offset))
+            if len(self.owners[mm_hash]) < 2:
+                self.owners[mm_hash].add((request_id, offset))
encoder-cache the_engine_reads_from_it: the worker is never told
-        found, self.evicted = list(self.evicted), {}
-        return found
+        return []
encoder-cache the_engine_reads_from_it: the worker drops entries that it still reads
-        found, self.evicted = list(self.evicted), {}
+        found, self.evicted = [*self.evicted, *self.size][:4], {}
encoder-cache num_free_needs_no_sum: adds up the entries with owners
-        return self.capacity - self.num_owned
+        return self.capacity - sum(self.size[each] for each in self.owners)
encoder-cache wrong_calls_are_refused: fit of an unknown id allows all
+        if request_id not in self.images:
+            return count
         room, counted = self.num_free, set()
encoder-cache a_chunk_ends_before_what_does_not_fit: one embedding is taken from the start
-        self.num_cached = self.num_owned = 0
+        self.num_cached = self.num_owned = 1
encoder-cache a_chunk_ends_before_what_does_not_fit: the first image alone is registered
-        self.images[request_id] = images
+        self.images[request_id] = images[:1]
encoder-cache a_removed_request_owns_nothing: an unknown id is an error for computed
-        for mm_hash, offset, size in self.images.get(request_id, []):
+        for mm_hash, offset, size in self.images[request_id]:
encoder-cache a_removed_request_owns_nothing: an unknown id is an error for remove
-        for mm_hash, offset, _ in self.images.pop(request_id, []):
+        for mm_hash, offset, _ in self.images.pop(request_id):
"""
