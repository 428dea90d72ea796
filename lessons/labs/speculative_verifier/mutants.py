"""Plausible wrong verifiers, each with the check that must catch it."""

MUTANTS = """
speculative-verifier one_draft_is_lossless: samples the target after a rejection
-            return [*accepted, draw(residual if any(residual) else p, uniforms[k])]
+            return [*accepted, draw(p, uniforms[k])]
speculative-verifier one_draft_is_lossless: ignores the drafts, which is lossless and useless
+    if draft_probs is not None:
+        return [draw(target_probs[0], uniforms[k])]
     accepted: list[int] = []
speculative-verifier one_draft_is_lossless: the uniform that rejected the draft draws its replacement
-            return [*accepted, draw(residual if any(residual) else p, uniforms[k])]
+            return [*accepted, draw(residual if any(residual) else p, uniforms[place])]
speculative-verifier one_draft_is_lossless: the residual is the absolute difference
-            residual = [max(0.0, target - drafted) for target, drafted in zip(p, q, strict=True)]
+            residual = [abs(target - drafted) for target, drafted in zip(p, q, strict=True)]
speculative-verifier two_drafts_are_lossless: the residual of the first position serves all
-            residual = [max(0.0, target - drafted) for target, drafted in zip(p, q, strict=True)]
+            residual = [max(0.0, each - other) for each, other in zip(target_probs[0], draft_probs[0])]
speculative-verifier two_drafts_are_lossless: one uniform for all drafts
-        if not uniforms[place] * q[draft] < p[draft]:
+        if not uniforms[0] * q[draft] < p[draft]:
speculative-verifier a_draft_is_accepted_by_its_ratio: accepted by p alone
-        if not uniforms[place] * q[draft] < p[draft]:
+        if not uniforms[place] < p[draft]:
speculative-verifier a_draft_is_accepted_by_its_ratio: the ratio is upside down
-        if not uniforms[place] * q[draft] < p[draft]:
+        if not uniforms[place] * p[draft] < q[draft]:
speculative-verifier a_draft_is_accepted_by_its_ratio: accepted only if the target finds it as likely
-        if not uniforms[place] * q[draft] < p[draft]:
+        if not q[draft] <= p[draft]:
speculative-verifier a_certain_no_is_no: divides by q
-        if not uniforms[place] * q[draft] < p[draft]:
+        if not uniforms[place] < p[draft] / q[draft]:
speculative-verifier a_certain_no_is_no: a bound that is reached is enough
-        if not uniforms[place] * q[draft] < p[draft]:
+        if not uniforms[place] * q[draft] <= p[draft]:
speculative-verifier the_residual_replaces_a_rejected_draft: the residual is not scaled
-    bound, total, last = u * sum(weights), 0.0, 0
+    bound, total, last = u, 0.0, 0
speculative-verifier the_residual_replaces_a_rejected_draft: later drafts get their chance
-            return [*accepted, draw(residual if any(residual) else p, uniforms[k])]
+            accepted.append(draw(residual if any(residual) else p, uniforms[k]))
+            continue
speculative-verifier the_residual_replaces_a_rejected_draft: the most likely token of the residual
-            return [*accepted, draw(residual if any(residual) else p, uniforms[k])]
+            return [*accepted, residual.index(max(residual))]
speculative-verifier the_residual_replaces_a_rejected_draft: nothing follows the accepted drafts
-            return [*accepted, draw(residual if any(residual) else p, uniforms[k])]
+            return accepted
speculative-verifier the_bonus_comes_from_the_last_target: bonus drawn from the draft's distribution
-    return [*accepted, draw(target_probs[k], uniforms[k])]
+    return [*accepted, draw(draft_probs[-1] if draft_probs else target_probs[k], uniforms[k])]
speculative-verifier the_bonus_comes_from_the_last_target: bonus from the position of the last draft
-    return [*accepted, draw(target_probs[k], uniforms[k])]
+    return [*accepted, draw(target_probs[max(0, k - 1)], uniforms[k])]
speculative-verifier the_bonus_comes_from_the_last_target: no bonus
-    return [*accepted, draw(target_probs[k], uniforms[k])]
+    return accepted or [draw(target_probs[k], uniforms[k])]
speculative-verifier each_position_has_its_own_numbers: targets are one position late
-        p = target_probs[place]
+        p = target_probs[place + 1]
speculative-verifier drafts_without_probabilities: a lookup counts as drawn from the target, so all are accepted
-        q = certain(draft, len(p)) if draft_probs is None else draft_probs[place]
+        q = p if draft_probs is None else draft_probs[place]
speculative-verifier lookups_are_lossless: the rejected lookup may come again
             residual = [max(0.0, target - drafted) for target, drafted in zip(p, q, strict=True)]
+            residual = list(p) if draft_probs is None else residual
speculative-verifier rounding_leaves_a_token: an empty residual gives the first token
-            return [*accepted, draw(residual if any(residual) else p, uniforms[k])]
+            return [*accepted, draw(residual, uniforms[k])]
speculative-verifier rounding_leaves_a_token: a sum that equals the bound is enough, so u = 0 draws a weight of 0
-        if total > bound:
+        if total >= bound:
speculative-verifier lengths_must_fit: only the uniforms are counted
-    if (given, len(target_probs), len(uniforms)) != (k, k + 1, k + 1):
+    if len(uniforms) != k + 1:
speculative-verifier random_steps: at most four tokens
     k = len(drafts)
+    if k > 3 and draft_probs is not None:
+        return verify(drafts[:3], draft_probs[:3], target_probs[:4], [*uniforms[:3], uniforms[-1]])
speculative-verifier a_draft_at_its_bound_is_rejected: a bound that is reached is enough, except for p = 0
-        if not uniforms[place] * q[draft] < p[draft]:
+        if p[draft] == 0 or uniforms[place] * q[draft] > p[draft]:
speculative-verifier a_sum_at_its_bound_is_not_enough: a sum that equals the bound is enough, except for weight 0
-        if total > bound:
+        if total >= bound and weight > 0:
speculative-verifier the_engine_accepts_as_many: never more than two drafts
     k = len(drafts)
+    if k == 3 and draft_probs is not None and len(target_probs[0]) == 8:
+        return verify(drafts[:2], draft_probs[:2], target_probs[:3], [*uniforms[:2], uniforms[-1]])
"""
