"""Plausible wrong solutions of lesson 02."""

MUTANTS = """
02.1 append_returns_all_tokens: returns the new tokens only
-        return self._store[layer, 0, :end], self._store[layer, 1, :end]
+        return self._store[layer, 0, start:end], self._store[layer, 1, start:end]
02.1 append_returns_all_tokens: counts calls instead of tokens
-        self._filled[layer] = end
+        self._filled[layer] = start + 1
02.1 append_returns_all_tokens: returns the whole allocation, zeros included
-        return self._store[layer, 0, :end], self._store[layer, 1, :end]
+        return self._store[layer, 0], self._store[layer, 1]
02.1 keys_and_values_differ: stores the keys twice
-        self._store[layer, 1, start:end] = v
+        self._store[layer, 1, start:end] = k
02.1 layers_are_separate: all layers use the count of the first
-        start = self._filled[layer]
+        start = self._filled[0]
02.1 layers_are_separate: all layers share one store
-        self._store[layer, 0, start:end] = k
-        self._store[layer, 1, start:end] = v
+        self._store[0, 0, start:end] = k
+        self._store[0, 1, start:end] = v
@@
-        return self._store[layer, 0, :end], self._store[layer, 1, :end]
+        return self._store[0, 0, :end], self._store[0, 1, :end]
02.1 length_is_what_every_layer_holds: adds up the layers
-        return min(self._filled)
+        return sum(self._filled)
02.1 length_is_what_every_layer_holds: reports a token before the last layer has it
-        return min(self._filled)
+        return self._filled[0]
02.1 the_last_slot_is_used: leaves one slot empty
-        if end > self._max_len:
+        if end >= self._max_len:
02.1 a_full_cache_refuses: leaves the check to torch
-        if end > self._max_len:
-            raise ValueError(f"{end} tokens do not fit into a cache of {self._max_len}")
02.1 a_full_cache_refuses: counts the tokens that it refuses
         end = start + len(k)
+        self._filled[layer] = end
@@
         self._store[layer, 1, start:end] = v
-        self._filled[layer] = end
02.2 weights_are_a_scaled_softmax: forgets the scale
-    scores = torch.einsum("nkgd,lkd->kgnl", grouped, K) / head_dim**0.5
+    scores = torch.einsum("nkgd,lkd->kgnl", grouped, K)
02.2 weights_are_a_scaled_softmax: divides by head_dim
-    scores = torch.einsum("nkgd,lkd->kgnl", grouped, K) / head_dim**0.5
+    scores = torch.einsum("nkgd,lkd->kgnl", grouped, K) / head_dim
02.2 a_query_sees_itself: hides a token from itself
-    later = torch.arange(length) > positions[:, None]
+    later = (torch.arange(length) >= positions[:, None]) & (torch.arange(length) > 0)
02.2 the_future_is_hidden: forgets the mask
-    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
+    weights = scores.softmax(-1)
02.2 the_future_is_hidden: sees one token ahead
-    later = torch.arange(length) > positions[:, None]
+    later = torch.arange(length) > positions[:, None] + 1
02.2 positions_start_at_first_position: counts positions from 0
-    positions = first_position + torch.arange(n)
+    positions = torch.arange(n)
02.2 neighbouring_heads_share: query head h reads key head h % kv_heads
-    grouped = q.reshape(n, kv_heads, heads // kv_heads, head_dim)
+    grouped = q.reshape(n, heads // kv_heads, kv_heads, head_dim).transpose(1, 2)
@@
-    return torch.einsum("kgnl,lkd->nkgd", weights, V).reshape(n, heads, head_dim)
+    return torch.einsum("kgnl,lkd->ngkd", weights, V).reshape(n, heads, head_dim)
02.2 large_scores_stay_finite: exponentiates without taking the largest away
-    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
+    weights = scores.masked_fill(later, -torch.inf).exp()
+    weights = weights / weights.sum(-1, keepdim=True)
02.3 keys_and_values_are_counted: counts the keys only
-    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value
+    return num_layers * num_kv_heads * head_dim * bytes_per_value
02.3 every_layer_counts: counts one layer
-    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value
+    return 2 * num_kv_heads * head_dim * bytes_per_value
02.3 bytes_follow_the_type: assumes 16 bits
-    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value
+    return 2 * num_layers * num_kv_heads * head_dim * 2
02.3 only_whole_tokens_fit: forgets the weights
-    return max(0, memory_bytes - weight_bytes) // bytes_per_token
+    return memory_bytes // bytes_per_token
02.3 only_whole_tokens_fit: rounds up
-    return max(0, memory_bytes - weight_bytes) // bytes_per_token
+    return max(0, -(-(memory_bytes - weight_bytes) // bytes_per_token))
02.3 weights_may_not_fit: returns a negative number of tokens
-    return max(0, memory_bytes - weight_bytes) // bytes_per_token
+    return (memory_bytes - weight_bytes) // bytes_per_token
"""
