"""Plausible wrong solutions of lesson 14."""

MUTANTS = """
14.1 columns_are_outputs: splits the inputs, as the name in the paper's notation suggests
-    return weight.chunk(size, dim=0)[rank]
+    return weight.chunk(size, dim=1)[rank]
14.1 columns_are_outputs: deals the outputs out in turn
-    return weight.chunk(size, dim=0)[rank]
+    return weight[rank::size]
14.1 rows_are_inputs: splits the outputs
-    return weight.chunk(size, dim=1)[rank]
+    return weight.chunk(size, dim=0)[rank]
14.1 uneven_parts_are_refused: gives the last rank what is left
-    if weight.shape[1] % size:
-        raise ValueError(f"{weight.shape[1]} inputs do not split into {size} equal parts")
14.1 one_all_reduce_is_enough: sums after each of the two layers
-    return all_reduce(linear(silu(linear(x, gate)) * linear(x, up), down))
+    inner = silu(linear(x, gate)) * linear(x, up)
+    all_reduce(inner)
+    return all_reduce(linear(inner, down))
14.1 the_parts_add_up: forgets the up projection
-    return all_reduce(linear(silu(linear(x, gate)) * linear(x, up), down))
+    return all_reduce(linear(silu(linear(x, gate)), down))
14.1 the_sum_is_the_result: returns the rank's own part
-    return all_reduce(linear(silu(linear(x, gate)) * linear(x, up), down))
+    part = linear(silu(linear(x, gate)) * linear(x, up), down)
+    all_reduce(part)
+    return part
14.2 the_longest_prefix_wins: asks for the first block first
-    for block_hash in reversed(block_hashes):
+    for block_hash in block_hashes:
14.2 an_overloaded_replica_is_passed_over: affinity at any load
-        with_room = [replica for replica in holders.get(block_hash, ()) if loads[replica] < limit]
+        with_room = list(holders.get(block_hash, ()))
14.2 an_overloaded_replica_is_passed_over: the mean forgets the new request
-    limit = math.ceil(max_imbalance * (sum(loads) + 1) / len(loads))
+    limit = math.ceil(max_imbalance * sum(loads) / len(loads))
14.2 a_shorter_prefix_with_room_is_used: gives up after the longest prefix
         if with_room:
             return min(with_room, key=lambda replica: (loads[replica], replica))
+        if block_hash in holders:
+            break
14.2 unknown_prompts_go_to_the_least_loaded: sends unknown prompts to the first replica
-    return min(range(len(loads)), key=lambda replica: (loads[replica], replica))
+    return 0
14.2 random_fleets_agree: takes any holder with room
-            return min(with_room, key=lambda replica: (loads[replica], replica))
+            return with_room[-1]
14.3 a_transfer_takes_bytes_over_rate: pays the latency for every token
-    return latency_s + num_tokens * kv_bytes_per_token / bytes_per_s
+    return num_tokens * (latency_s + kv_bytes_per_token / bytes_per_s)
14.3 in_one_piece_all_is_exposed: hides the transfer behind the prefill though nothing is sent before its end
-        return transfer_s
+        return max(0.0, transfer_s - prefill_s)
14.3 a_fast_link_exposes_one_layer: hides everything on a fast link
-    return send if send <= compute else send + (num_layers - 1) * (send - compute)
+    return 0.0 if send <= compute else send + (num_layers - 1) * (send - compute)
14.3 a_slow_link_queues: never lets layers queue
-    return send if send <= compute else send + (num_layers - 1) * (send - compute)
+    return send
14.3 a_slow_link_queues: starts sending before the first layer is computed
-    return send if send <= compute else send + (num_layers - 1) * (send - compute)
+    return send if send <= compute else transfer_s - prefill_s
14.3 random_links_agree: lets the first layer queue, too
-    return send if send <= compute else send + (num_layers - 1) * (send - compute)
+    return send if send <= compute else send + num_layers * (send - compute)
"""
