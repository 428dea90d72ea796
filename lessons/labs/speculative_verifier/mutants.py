"""Plausible wrong verifiers, each with the check that must catch it."""

MUTANTS = """
speculative-verifier draw_is_the_inverse_of_the_sums: at the sum itself
-            if running > aim:
+            if running >= aim:
speculative-verifier draw_is_the_inverse_of_the_sums: the most likely token
-    aim, running, last = u * sum(weights), 0.0, 0
+    return max(range(len(weights)), key=lambda token: weights[token])
+    aim, running, last = u * sum(weights), 0.0, 0
speculative-verifier draw_takes_any_sum: weights are taken for probabilities
-    aim, running, last = u * sum(weights), 0.0, 0
+    aim, running, last = u, 0.0, 0
speculative-verifier residual_is_what_is_missing: the absolute difference
-        left = [max(target - draft, 0.0) for target, draft in zip(p, q, strict=True)]
+        left = [abs(target - draft) for target, draft in zip(p, q, strict=True)]
speculative-verifier residual_is_what_is_missing: nothing left stays nothing
-    return left if any(left) else list(p)
+    return left
speculative-verifier nothing_is_lost: a refused draft is replaced from p
-            return [*kept, draw(residual(p, q, token), uniforms[-1])]
+            return [*kept, draw(p, uniforms[-1])]
speculative-verifier a_likely_draft_is_kept: the other side of u
-        if not u * drafted < p[token]:
+        if u * drafted < p[token]:
speculative-verifier an_unlikely_draft_is_kept_in_proportion: kept with probability p
-        if not u * drafted < p[token]:
+        if not u < p[token]:
speculative-verifier an_unlikely_draft_is_kept_in_proportion: kept only if p is at least q
-        if not u * drafted < p[token]:
+        if p[token] < drafted:
speculative-verifier the_first_refusal_ends_the_step: goes on behind a refusal
-            return [*kept, draw(residual(p, q, token), uniforms[-1])]
+            kept.append(draw(residual(p, q, token), uniforms[-1]))
+            continue
speculative-verifier one_more_token_after_all: no token more
-    return [*kept, draw(target_probs[len(drafts)], uniforms[-1])]
+    return kept or [draw(target_probs[len(drafts)], uniforms[-1])]
speculative-verifier one_more_token_after_all: one more from the last draft's place
-    return [*kept, draw(target_probs[len(drafts)], uniforms[-1])]
+    return [*kept, draw(target_probs[max(0, len(drafts) - 1)], uniforms[-1])]
speculative-verifier zeros: p = 0 passes with u = 0
-        if not u * drafted < p[token]:
+        if not u * drafted <= p[token]:
speculative-verifier zeros: divided by q
-        if not u * drafted < p[token]:
+        if not u < p[token] / drafted:
speculative-verifier drafts_without_probabilities: the draft can come back
-        left = [0.0 if each == token else weight for each, weight in enumerate(p)]
+        left = list(p)
speculative-verifier random_chains: the draw uses the refused draft's number
-            return [*kept, draw(residual(p, q, token), uniforms[-1])]
+            return [*kept, draw(residual(p, q, token), u)]
"""
