"""Right repairs of the programs in quizzes/autopsies whose shape is not that of solution.py.

right: last token first
-        the lines of solution.py that go
+        the lines that come
@@
 the next hunk
right: keeps all scores, then weighs the values
def attention(...): the whole repair instead of a diff
"""

import re

from quizzes.autopsies.programs import read
from quizzes.mutant_diffs import apply_diff

REPAIRS = {
    "attention_kernel": """
right: keeps all scores, then weighs the values
import math
def attention(query, key_blocks, value_blocks, block_table, seq_len, block_size):
    def at(blocks, token):
        return blocks[block_table[token // block_size]][token % block_size]
    scores = [
        sum(a * b for a, b in zip(query, at(key_blocks, t))) / math.sqrt(len(query)) for t in range(seq_len)
    ]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    output = [0.0] * len(query)
    for token, weight in enumerate(weights):
        for i, v in enumerate(at(value_blocks, token)):
            output[i] += weight * v
    return [o / sum(weights) for o in output]
right: takes block after block as slices
import math
def attention(query, key_blocks, value_blocks, block_table, seq_len, block_size):
    keys, values = [], []
    for number, block in enumerate(block_table):
        rest = min(block_size, seq_len - number * block_size)
        if rest > 0:
            keys.extend(key_blocks[block][:rest])
            values.extend(value_blocks[block][:rest])
    scores = [sum(map(lambda a, b: a * b, query, key)) * len(query) ** -0.5 for key in keys]
    weights = [math.exp(s - max(scores)) for s in scores]
    return [sum(w * v for w, v in zip(weights, column)) / sum(weights) for column in zip(*values)]
right: a running mean that is normalised at every token
-        output = [o * shrink + weight * v for o, v in zip(output, value, strict=True)]
+        output = [o + (v - o) * weight / total for o, v in zip(output, value, strict=True)]
@@
-    return [o / total for o in output]
+    return output
right: rescales only when the maximum moves
-        new_top = max(top, score)
-        shrink, weight = math.exp(top - new_top), math.exp(score - new_top)
-        total = total * shrink + weight
-        output = [o * shrink + weight * v for o, v in zip(output, value, strict=True)]
-        top = new_top
+        if score > top:
+            shrink = math.exp(top - score)
+            total *= shrink
+            output = [o * shrink for o in output]
+            top = score
+        weight = math.exp(score - top)
+        total += weight
+        for i in range(len(output)):
+            output[i] += weight * value[i]
right: last token first
-    for token in range(seq_len):
+    for token in reversed(range(seq_len)):
right: a partial result per block, merged at the end
import math
def attention(query, key_blocks, value_blocks, block_table, seq_len, block_size):
    parts = []
    for first in range(0, seq_len, block_size):
        block = block_table[first // block_size]
        count = min(block_size, seq_len - first)
        scores = [
            sum(q * k for q, k in zip(query, key_blocks[block][i])) / len(query) ** 0.5 for i in range(count)
        ]
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        values = [value_blocks[block][i] for i in range(count)]
        parts.append((top, sum(weights), [sum(map(float.__mul__, weights, c)) for c in zip(*values)]))
    highest = max(top for top, _, _ in parts)
    total = sum(math.exp(top - highest) * weight for top, weight, _ in parts)
    sums = [[math.exp(top - highest) * x for x in output] for top, _, output in parts]
    return [sum(column) / total for column in zip(*sums)]
""",
    "batching_loop": """
right: a queue and a dict of running requests
from collections import deque
def continuous_batching(model, waiting, memory, slots):
    queue, running = deque(waiting), {}
    while queue or running:
        while queue and len(running) < slots:
            request = queue.popleft()
            running[request.name] = request
        for name, token in model.forward(list(running.values())).items():
            if token is None:
                memory.release([running.pop(name)])
right: a pointer into the waiting list
def continuous_batching(model, waiting, memory, slots):
    upcoming, batch = 0, []
    while True:
        room = slots - len(batch)
        batch += waiting[upcoming : upcoming + room]
        upcoming = min(len(waiting), upcoming + room)
        if not batch:
            return
        outputs = model.forward(batch)
        done = {r.name for r in batch if outputs[r.name] is None}
        if done:
            memory.release([r for r in batch if r.name in done])
        batch = [r for r in batch if r.name not in done]
right: a list of slots, some of them empty
def continuous_batching(model, waiting, memory, slots):
    places = [None] * slots
    waiting = list(waiting)
    while waiting or any(places):
        for i, request in enumerate(places):
            if request is None and waiting:
                places[i] = waiting.pop(0)
        outputs = model.forward([r for r in places if r is not None])
        for i, request in enumerate(places):
            if request is not None and outputs[request.name] is None:
                memory.release([request])
                places[i] = None
right: fills up at the end of the loop
-    batch: list[Any] = []
-    while waiting or batch:
-        while waiting and len(batch) < slots:
-            batch.append(waiting.pop(0))
+    batch = [waiting.pop(0) for _ in range(min(slots, len(waiting)))]
+    while batch:
@@
         batch = [request for request in batch if outputs[request.name] is not None]
+        batch += [waiting.pop(0) for _ in range(min(slots - len(batch), len(waiting)))]
right: removes the finished one by one
-        completed = [request for request in batch if outputs[request.name] is None]
-        memory.release(completed)
-        batch = [request for request in batch if outputs[request.name] is not None]
+        for request in list(batch):
+            if outputs.get(request.name) is None:
+                batch.remove(request)
+                memory.release((request,))
right: one step as a function of its own
def continuous_batching(model, waiting, memory, slots):
    def step(batch, queue):
        batch, queue = batch + queue[: slots - len(batch)], queue[slots - len(batch) :]
        outputs = model.forward(batch)
        memory.release([r for r in batch if outputs[r.name] is None])
        return [r for r in batch if outputs[r.name] is not None], queue
    batch, queue = [], list(waiting)
    while batch or queue:
        batch, queue = step(batch, queue)
""",
    "block_manager": """
right: a list of free ids as a stack
-        self.free_blocks = deque(self.blocks)
+        self.free_blocks = list(range(num_blocks))
@@
-            block = self.free_blocks.popleft()
+            block = self.blocks[self.free_blocks.pop()]
@@
-                self.free_blocks.append(block)
+                self.free_blocks.append(block.block_id)
right: a block says itself whether it is full
-        if len(self.tokens) + len(tokens) > self.block_size:
-            return False
-        self.tokens += tokens
-        return True
+        fits = len(tokens) <= self.block_size - len(self.tokens)
+        if fits:
+            self.tokens.extend(tokens)
+        return fits
right: slices of the free list
-        for _ in range(needed):
-            block = self.free_blocks.popleft()
-            block.ref_count = 1
-            table.append(block)
+        if needed > 0:
+            taken = [self.free_blocks.pop() for _ in range(needed)]
+            for block in taken:
+                block.ref_count += 1
+            table.extend(taken)
right: a dict of free blocks
-        self.free_blocks = deque(self.blocks)
+        self.free_blocks = dict.fromkeys(self.blocks)
@@
-            block = self.free_blocks.popleft()
+            block = next(iter(self.free_blocks))
+            del self.free_blocks[block]
@@
-                self.free_blocks.append(block)
+                self.free_blocks[block] = None
right: allocate takes blocks without grow
-        table: list[Block] = []
-        return table if self.grow(table, num_tokens) else None
+        count = (num_tokens + self.block_size - 1) // self.block_size
+        if count > self.num_free():
+            return None
+        table = [self.free_blocks.popleft() for _ in range(count)]
+        for block in table:
+            block.ref_count = 1
+        return table
right: the number of free blocks is a counter
-        self.free_blocks = deque(self.blocks)
+        self.free_blocks = deque(self.blocks)
+        self.count = num_blocks
@@
-            block = self.free_blocks.popleft()
+            block = self.free_blocks.popleft()
+            self.count -= 1
@@
-                self.free_blocks.append(block)
+                self.free_blocks.append(block)
+                self.count += 1
@@
-        return len(self.free_blocks)
+        return self.count
""",
    "chunked_prefill": """
right: yields chunks as long as tokens are left
def chunked_prefill(model, prompt, decodes, budget):
    rest, start = list(prompt), 0
    while rest:
        running = list(decodes())
        if len(running) >= budget:
            raise ValueError("no room for the prompt")
        take = min(len(rest), budget - len(running))
        state = model.step([(name, 0, [0]) for name in running] + [("prompt", start, rest[:take])])
        rest, start = rest[take:], start + take
    return state["prompt"]
right: the prompt's row comes first
-        rows = [(name, 0, [0]) for name in names] + [("prompt", computed, chunk)]
+        rows = [("prompt", computed, chunk), *((name, 0, [0]) for name in names)]
right: counts what is left
-    computed = 0
+    computed, left = 0, len(prompt)
@@
-    while computed < len(prompt):
+    while left > 0:
@@
-        computed += len(chunk)
+        computed, left = computed + len(chunk), left - len(chunk)
right: an end position instead of a slice's length
-        chunk = prompt[computed : computed + room]
+        end = min(len(prompt), computed + room)
+        chunk = [prompt[i] for i in range(computed, end)]
@@
-        computed += len(chunk)
+        computed = end
right: calls itself
def chunked_prefill(model, prompt, decodes, budget, computed=0):
    names = decodes()
    room = budget - len(names)
    if room <= 0:
        raise ValueError(f"no room beside {len(names)} decodes")
    rows = [(name, 0, [0]) for name in names] + [("prompt", computed, prompt[computed : computed + room])]
    answers = model.step(rows)
    if computed + room >= len(prompt):
        return answers["prompt"]
    return chunked_prefill(model, prompt, decodes, budget, computed + room)
right: an endless loop with a return
-    while computed < len(prompt):
+    while True:
@@
-        computed += len(chunk)
-    return answers["prompt"]
+        computed += len(chunk)
+        if computed >= len(prompt):
+            return answers["prompt"]
""",
    "multimodal_merge": """
right: encodes image by image
-        if new:
-            self.encoded.update(zip(new, self.vision_encoder(new), strict=True))
+        for image in new:
+            self.encoded[image] = self.vision_encoder([image])[0]
right: takes images from a copy
-        upcoming = iter(images)
+        upcoming = list(images)
@@
-            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
+            if token == self.placeholder:
+                combined.extend(self.encoded[upcoming.pop(0)])
+            else:
+                combined.append(token)
right: a list of parts, joined at the end
-        upcoming = iter(images)
-        combined: list[Any] = []
-        for token in tokens:
-            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
-        return combined
+        parts, number = [], 0
+        for token in tokens:
+            if token == self.placeholder:
+                parts.append(self.encoded[images[number]])
+                number += 1
+            else:
+                parts.append([token])
+        return [x for part in parts for x in part]
right: new images by a loop
-        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
+        new = []
+        for image in images:
+            if image not in self.encoded and image not in new:
+                new.append(image)
right: finds the places first
-        places = tokens.count(self.placeholder)
+        where = [i for i, token in enumerate(tokens) if token == self.placeholder]
+        places = len(where)
@@
-        upcoming = iter(images)
-        combined: list[Any] = []
-        for token in tokens:
-            combined += self.encoded[next(upcoming)] if token == self.placeholder else [token]
-        return combined
+        combined = list(tokens)
+        for i, image in reversed(list(zip(where, images))):
+            combined[i : i + 1] = self.encoded[image]
+        return combined
right: the missing images as a sorted set
-        new = [image for image in dict.fromkeys(images) if image not in self.encoded]
-        if new:
-            self.encoded.update(zip(new, self.vision_encoder(new), strict=True))
+        missing = sorted(set(images) - set(self.encoded))
+        if missing:
+            for image, features in zip(missing, self.vision_encoder(missing)):
+                self.encoded[image] = features
""",
    "paged_allocator": """
right: a queue of free blocks
-        self.free_blocks = list(range(num_blocks))
+        self.free_blocks = dict.fromkeys(range(num_blocks))
@@
-        self.block_tables[name] = [self.free_blocks.pop() for _ in range(count)]
+        self.block_tables[name] = [self.free_blocks.popitem()[0] for _ in range(count)]
@@
-            self.block_tables[name].append(self.free_blocks.pop())
+            self.block_tables[name].append(self.free_blocks.popitem()[0])
@@
-        self.free_blocks += self.block_tables.pop(name)
+        self.free_blocks.update(dict.fromkeys(self.block_tables.pop(name)))
right: takes blocks as a slice
-        self.block_tables[name] = [self.free_blocks.pop() for _ in range(count)]
+        self.block_tables[name], self.free_blocks = self.free_blocks[:count], self.free_blocks[count:]
right: one object per sequence
class Sequence:
    def __init__(self):
        self.blocks, self.length = [], 0
class PagedAllocator:
    def __init__(self, num_blocks, block_size):
        self.size, self.pool, self.sequences = block_size, set(range(num_blocks)), {}
    def allocate(self, name, num_tokens):
        if name in self.sequences:
            raise ValueError(name)
        if num_tokens > len(self.pool) * self.size:
            raise MemoryError(num_tokens)
        sequence = self.sequences[name] = Sequence()
        for _ in range(num_tokens):
            self.append(name)
        return list(sequence.blocks)
    def append(self, name):
        sequence = self.sequences[name]
        if sequence.length % self.size == 0:
            if not self.pool:
                raise MemoryError("empty")
            sequence.blocks.append(self.pool.pop())
        sequence.length += 1
        return self.slot(name, sequence.length - 1)
    def slot(self, name, position):
        sequence = self.sequences[name]
        if position not in range(sequence.length):
            raise IndexError(position)
        block, offset = divmod(position, self.size)
        return sequence.blocks[block] * self.size + offset
    def free(self, name):
        self.pool.update(self.sequences.pop(name).blocks)
right: a table of slots instead of blocks
-        block = self.block_tables[name][position // self.block_size]
-        return block * self.block_size + position % self.block_size
+        slots = [b * self.block_size + i for b in self.block_tables[name] for i in range(self.block_size)]
+        return slots[position]
right: counts the free tokens of the last block
-        if self.num_tokens[name] == len(self.block_tables[name]) * self.block_size:
+        if len(self.block_tables[name]) * self.block_size - self.num_tokens[name] < 1:
right: an owner for each block
class PagedAllocator:
    def __init__(self, num_blocks, block_size):
        self.block_size, self.owner, self.tables, self.lens = block_size, [None] * num_blocks, {}, {}
    def _take(self, name, count):
        found = [i for i, owner in enumerate(self.owner) if owner is None][:count]
        if len(found) < count:
            raise MemoryError(f"{count} needed")
        for i in found:
            self.owner[i] = name
        return found
    def allocate(self, name, num_tokens):
        if name in self.tables:
            raise ValueError("used")
        self.tables[name] = self._take(name, (num_tokens + self.block_size - 1) // self.block_size)
        self.lens[name] = num_tokens
        return self.tables[name][:]
    def slot(self, name, position):
        if position < 0 or position >= self.lens[name]:
            raise IndexError("not there")
        return self.tables[name][position // self.block_size] * self.block_size + position % self.block_size
    def append(self, name):
        if self.lens[name] % self.block_size == 0:
            self.tables[name] += self._take(name, 1)
        self.lens[name] += 1
        return self.slot(name, self.lens[name] - 1)
    def free(self, name):
        self.owner = [None if owner == name else owner for owner in self.owner]
        del self.tables[name], self.lens[name]
""",
    "paged_attention": """
right: gathers whole blocks, then cuts
-        position = torch.arange(length)
-        tokens = cache[table[position // self.block_size], position % self.block_size]
+        blocks = cache[table[: -(-length // self.block_size)]]
+        tokens = blocks.reshape(-1, *cache.shape[2:])[:length]
right: flat slots
-        position = torch.arange(length)
-        tokens = cache[table[position // self.block_size], position % self.block_size]
+        position = torch.arange(length)
+        slots = table[position // self.block_size] * self.block_size + position % self.block_size
+        tokens = cache.flatten(0, 1)[slots]
right: torch's own attention
-        scores = torch.einsum("thd,shd->hts", query.float(), keys.float()) / self.head_dim**0.5
-        position = torch.arange(length - tokens, length)
-        future = torch.arange(length)[None, :] > position[:, None]
-        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
-        return torch.einsum("hts,shd->thd", weights, values.float()).to(query.dtype)
+        seen = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
+        q, k, v = (x.float().transpose(0, 1) for x in (query, keys, values))
+        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
+        return output.transpose(0, 1).to(query.dtype)
right: token by token
-        scores = torch.einsum("thd,shd->hts", query.float(), keys.float()) / self.head_dim**0.5
-        position = torch.arange(length - tokens, length)
-        future = torch.arange(length)[None, :] > position[:, None]
-        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
-        return torch.einsum("hts,shd->thd", weights, values.float()).to(query.dtype)
+        output = torch.zeros_like(query)
+        for t in range(tokens):
+            seen = length - tokens + t + 1
+            scores = (keys[:seen].float() * query[t].float()).sum(-1) / self.head_dim**0.5
+            output[t] = (scores.softmax(0)[..., None] * values[:seen].float()).sum(0).to(query.dtype)
+        return output
right: a mask that is added
-        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
+        mask = torch.zeros(tokens, length).masked_fill(future, float("-inf"))
+        weights = torch.softmax(scores + mask, dim=-1)
right: groups of heads as a dimension
-        return tokens.repeat_interleave(self.group, dim=1)
+        return tokens[:, :, None].expand(-1, -1, self.group, -1).flatten(1, 2)
""",
    "prefix_cache": """
right: a dict and a clock
-        self.blocks: OrderedDict[tuple[int, ...], list[Any]] = OrderedDict()
+        self.blocks: dict[tuple[int, ...], list[Any]] = {}
+        self.used: dict[tuple[int, ...], tuple[int, int]] = {}
+        self.clock = 0
@@
-        for end in range(len(token_ids) // size * size, 0, -size):  # the tail becomes the oldest
-            self.blocks.move_to_end(tuple(token_ids[:end]))
-        while len(self.blocks) > self.num_blocks:
-            self.blocks.popitem(last=False)
+        self.clock += 1
+        for end in range(size, len(token_ids) + 1, size):
+            self.used[tuple(token_ids[:end])] = (self.clock, -end)
+        while len(self.blocks) > self.num_blocks:
+            oldest = min(self.blocks, key=self.used.__getitem__)
+            del self.blocks[oldest], self.used[oldest]
right: a chain of parents
from collections import OrderedDict
class PrefixCache:
    def __init__(self, num_blocks, block_size, compute):
        self.num_blocks, self.block_size, self.compute = num_blocks, block_size, compute
        self.blocks = OrderedDict()
        self.queries = self.hits = 0
    def __len__(self):
        return len(self.blocks)
    def get_or_compute(self, token_ids):
        size, parent, keys = self.block_size, None, []
        for i in range(len(token_ids) // size):
            parent = (parent, tuple(token_ids[i * size : (i + 1) * size]))
            keys.append(parent)
        hit = []
        for key in keys[: (len(token_ids) - 1) // size]:
            if key not in self.blocks:
                break
            hit.extend(self.blocks[key])
        kv = hit + list(self.compute(token_ids, len(hit)))
        for i in reversed(range(len(keys))):
            self.blocks[keys[i]] = kv[i * size : (i + 1) * size]
            self.blocks.move_to_end(keys[i])
        while len(self.blocks) > self.num_blocks:
            self.blocks.popitem(last=False)
        self.queries += len(token_ids)
        self.hits += len(hit)
        return kv, len(hit)
right: makes room before the new blocks
-        while len(self.blocks) > self.num_blocks:
-            self.blocks.popitem(last=False)
+        surplus = len(self.blocks) - self.num_blocks
+        for key in list(self.blocks)[: max(0, surplus)]:
+            del self.blocks[key]
right: looks for the hit from its end
-        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
-            key = tuple(token_ids[:end])
-            if key not in self.blocks:
-                break
-            cached += self.blocks[key]
-            used.append(key)
+        while len(cached) + size < len(token_ids) and tuple(token_ids[: len(cached) + size]) in self.blocks:
+            cached += self.blocks[tuple(token_ids[: len(cached) + size])]
right: keys as text
-            key = tuple(token_ids[:end])
-            if key not in self.blocks:
+            key = ",".join(map(str, token_ids[:end]))
+            if key not in self.blocks:
@@
-            key = tuple(token_ids[:end])
-            self.blocks[key] = kv[end - size : end]
+            self.blocks[",".join(map(str, token_ids[:end]))] = kv[end - size : end]
@@
-            self.blocks.move_to_end(tuple(token_ids[:end]))
+            self.blocks.move_to_end(",".join(map(str, token_ids[:end])))
right: stores only what it computed
-            key = tuple(token_ids[:end])
-            self.blocks[key] = kv[end - size : end]
+            self.blocks.setdefault(tuple(token_ids[:end]), kv[end - size : end])
""",
    "scheduler": """
right: a sorted list
-        heapq.heappush(self.waiting, (sequence.priority, next(self.arrivals), sequence))
+        self.waiting.append((sequence.priority, next(self.arrivals), sequence))
+        self.waiting.sort(key=lambda entry: entry[:2])
@@
-            heapq.heappop(self.waiting)
+            self.waiting.pop(0)
right: looks for the first each time
-        while self.waiting and len(self.running) < self.max_batch_size:
-            sequence = self.waiting[0][2]
+        while self.waiting and len(self.running) < self.max_batch_size:
+            entry = min(self.waiting, key=lambda entry: (entry[0], entry[1]))
+            sequence = entry[2]
@@
-            heapq.heappop(self.waiting)
+            self.waiting.remove(entry)
right: counts the blocks of those that run
-            if self._blocks(sequence) > self.free_blocks:
+            taken = sum(self._blocks(other) for other in self.running.values())
+            if taken + self._blocks(sequence) > self.num_blocks:
right: a set of ids from both places
-        if sequence.request_id in self.known:
+        if sequence.request_id in {*self.running, *(entry[2].request_id for entry in self.waiting)}:
right: a list for each priority
from collections import deque
class Sequence:
    def __init__(self, request_id, num_tokens, priority=0):
        self.request_id, self.num_tokens, self.priority = request_id, num_tokens, priority
class SimpleScheduler:
    def __init__(self, max_batch_size=4, num_blocks=1000, block_size=16):
        self.slots, self.total, self.free, self.size = max_batch_size, num_blocks, num_blocks, block_size
        self.queues, self.running = {}, []
    def _need(self, sequence):
        return (sequence.num_tokens + self.size - 1) // self.size
    def _waiting(self):
        return [s for priority in sorted(self.queues) for s in self.queues[priority]]
    def add_sequence(self, sequence):
        if any(s.request_id == sequence.request_id for s in self.running + self._waiting()):
            raise ValueError("known")
        if self._need(sequence) > self.total:
            raise ValueError("too long")
        self.queues.setdefault(sequence.priority, deque()).append(sequence)
    def schedule(self):
        for sequence in self._waiting():
            if len(self.running) >= self.slots or self._need(sequence) > self.free:
                break
            self.queues[sequence.priority].remove(sequence)
            self.free -= self._need(sequence)
            self.running.append(sequence)
        return self.running[:]
    def complete_sequence(self, request_id):
        for sequence in [s for s in self.running if s.request_id == request_id]:
            self.running.remove(sequence)
            self.free += self._need(sequence)
    def abort(self, request_id):
        for sequence in self._waiting():
            if sequence.request_id == request_id:
                self.queues[sequence.priority].remove(sequence)
                return True
        was = len(self.running)
        self.complete_sequence(request_id)
        return len(self.running) < was
right: drops the aborted when they come up
-        self.waiting = [entry for entry in self.waiting if entry[2].request_id != request_id]
-        heapq.heapify(self.waiting)
+        for entry in list(self.waiting):
+            if entry[2].request_id == request_id:
+                self.waiting.remove(entry)
+        self.waiting.sort(key=lambda entry: entry[:2])
""",
}


def repairs(folder: str) -> dict[str, str]:
    """Return right repairs of a program: what they are -> source. Raises ValueError if a diff does not fit."""
    found = {}
    for entry in re.split(r"^(?=right: )", REPAIRS[folder], flags=re.MULTILINE)[1:]:
        name, _, body = entry.removeprefix("right: ").partition("\n")
        is_whole = re.match(r"(?:import|from|class|def) ", body)
        found[name] = body if is_whole else apply_diff(read(folder, "solution"), body, name)
    return found
