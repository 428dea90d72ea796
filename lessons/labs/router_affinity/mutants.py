"""Plausible wrong routers, each with the check that must catch it."""

MUTANTS = """
router-affinity the_longest_hit_wins: least loaded
-            return replica.hit(core), -replica.load, -replica.tokens, -replica.index
+            return replica.hit(core) > 0, -replica.load, -replica.tokens, -replica.index
router-affinity the_longest_hit_wins: load before affinity
-            return replica.hit(core), -replica.load, -replica.tokens, -replica.index
+            return -replica.load, replica.hit(core), -replica.tokens, -replica.index
router-affinity no_replica_runs_ahead: no bound
-        allowed = [replica for replica in ready if replica.load < most]
+        allowed = ready
router-affinity no_replica_runs_ahead: the bound leaves out the new request
-        allowed = [replica for replica in ready if replica.load < most]
+        allowed = [replica for replica in ready if replica.load <= most]
router-affinity no_replica_runs_ahead: average without the new request
-        most = math.ceil(self.factor * (sum(replica.load for replica in ready) + 1) / len(ready))
+        most = math.ceil(self.factor * sum(replica.load for replica in ready) / len(ready))
+        most = max(most, min(replica.load for replica in ready) + 1)
router-affinity the_bound_is_rounded_up: rounds down
-        most = math.ceil(self.factor * (sum(replica.load for replica in ready) + 1) / len(ready))
+        most = int(self.factor * (sum(replica.load for replica in ready) + 1) / len(ready))
+        most = max(most, min(replica.load for replica in ready) + 1)
router-affinity the_factor_counts: always 1.25
-        self.factor = factor
+        self.factor = 1.25
router-affinity ties_go_to_the_least_loaded: first in the list
-            return replica.hit(core), -replica.load, -replica.tokens, -replica.index
+            return replica.hit(core)
router-affinity ties_go_to_the_least_loaded: the busiest, to fill batches
-            return replica.hit(core), -replica.load, -replica.tokens, -replica.index
+            return replica.hit(core), replica.load, -replica.tokens, -replica.index
router-affinity ties_go_to_the_least_loaded: tokens do not count
-            return replica.hit(core), -replica.load, -replica.tokens, -replica.index
+            return replica.hit(core), -replica.load, -replica.index
router-affinity order_does_not_matter: equal replicas by their place in the list
-            return replica.hit(core), -replica.load, -replica.tokens, -replica.index
+            return replica.hit(core), -replica.load, -replica.tokens
router-affinity order_does_not_matter: sorts the fleet's own list
+        ready.sort(key=lambda replica: replica.index)
         allowed = [replica for replica in ready if replica.load < most]
router-affinity caches_are_asked_once: asks replicas over the bound
+        hits = {replica.index: replica.hit(core) for replica in ready}
         allowed = [replica for replica in ready if replica.load < most]
router-affinity caches_are_asked_once: asks twice
-        return max(allowed, key=worth)
+        longest = max(replica.hit(core) for replica in allowed)
+        return max((replica for replica in allowed if replica.hit(core) == longest), key=worth)
router-affinity a_fleet_is_routed_as_by_ours: a replica keeps the requests that it was sent first
         allowed = [replica for replica in ready if replica.load < most]
+        self.seen = getattr(self, "seen", {})
+        if request.route_key in self.seen:
+            allowed = [r for r in allowed if r.index == self.seen[request.route_key]] or allowed
+        self.seen[request.route_key] = max(allowed, key=lambda r: (-r.load, -r.index)).index
router-affinity random_replicas: looks at six replicas
-        allowed = [replica for replica in ready if replica.load < most]
+        allowed = [replica for replica in ready[:6] if replica.load < most] or ready
"""
