"""Plausible wrong grammar backends, each with the check that must catch it."""

MUTANTS = """
grammar-mask a_token_that_leads_on_is_allowed: the first byte decides
-        for byte in self.tokens[token_id]:
+        for byte in self.tokens[token_id][:1]:
grammar-mask a_token_that_leads_on_is_allowed: only tokens that complete the text
-            allowed += node.token_ids
+            allowed += node.token_ids if self._state(here)[1] else []
grammar-mask a_token_that_leads_on_is_allowed: a token may run past the end
-                todo += [(child, moves[byte]) for byte, child in node.children.items() if byte in moves]
+                is_complete = self._state(here)[1]
+                todo += [
+                    (child, moves.get(byte, here))
+                    for byte, child in node.children.items()
+                    if byte in moves or is_complete
+                ]
grammar-mask a_token_may_cross_states: tokens of one state only
-                todo += [(child, moves[byte]) for byte, child in node.children.items() if byte in moves]
+                near = node.children.items() if here == number else []
+                todo += [(child, moves[byte]) for byte, child in near if byte in moves]
grammar-mask a_token_may_cross_states: tokens of more than four bytes are left out
-            if spelled and token_id not in self.eos:
+            if spelled and token_id not in self.eos and len(spelled) <= 4:
grammar-mask end_of_sequence_where_it_is_complete: always allowed
-        allowed = [*self.eos] if self._state(number)[1] else []
+        allowed = [*self.eos]
grammar-mask end_of_sequence_where_it_is_complete: the last id is end of sequence
-        allowed = [*self.eos] if self._state(number)[1] else []
+        allowed = [len(self.tokens) - 1] if self._state(number)[1] else []
grammar-mask end_of_sequence_where_it_is_complete: one of the two ends
-        allowed = [*self.eos] if self._state(number)[1] else []
+        allowed = [min(self.eos)] if self._state(number)[1] else []
grammar-mask end_of_sequence_where_it_is_complete: only where nothing else may come
-        allowed = [*self.eos] if self._state(number)[1] else []
+        allowed = [*self.eos] if self._state(number)[1] and not self._state(number)[0] else []
grammar-mask end_of_sequence_where_it_is_complete: its bytes are read
-            if spelled and token_id not in self.eos:
+            if spelled:
@@
-        if token_id in self.eos:
-            return ENDED if self._state(number)[1] else None
+        if token_id in self.eos and self._state(number)[1]:
+            return ENDED
grammar-mask nothing_comes_after_the_end: end of sequence stays in the state
-            return ENDED if self._state(number)[1] else None
+            return number if self._state(number)[1] else None
grammar-mask nothing_comes_after_the_end: a second end is accepted
-        if number == ENDED or not 0 <= token_id < len(self.tokens):
+        if number == ENDED:
+            return ENDED if token_id in self.eos else None
+        if not 0 <= token_id < len(self.tokens):
grammar-mask tokens_without_bytes_are_never_allowed: they stay in the state
-        if not self.tokens[token_id]:
-            return None
         for byte in self.tokens[token_id]:
grammar-mask tokens_without_bytes_are_never_allowed: the mask allows them
-            if spelled and token_id not in self.eos:
+            if token_id not in self.eos:
grammar-mask tokens_cut_characters: tokens that are no text are left out
-            if spelled and token_id not in self.eos:
+            if spelled.decode("utf-8", "ignore").encode() == spelled != b"" and token_id not in self.eos:
grammar-mask tokens_cut_characters: U+FFFD instead of a part of a character
-                for byte in spelled:
+                for byte in spelled.decode("utf-8", "replace").encode():
grammar-mask equal_bytes_are_both_allowed: the last of them wins
-                node.token_ids.append(token_id)
+                node.token_ids = [token_id]
grammar-mask the_words_have_the_engines_layout: the first token is the highest bit
-            words[token_id // 32] |= 1 << token_id % 32
+            words[token_id // 32] |= 1 << 31 - token_id % 32
grammar-mask the_words_have_the_engines_layout: a word too many
-        words = array("I", bytes(4 * -(-len(self.tokens) // 32)))
+        words = array("I", bytes(4 * (len(self.tokens) // 32 + 1)))
grammar-mask accept_is_all_or_nothing: the allowed prefix is kept
-        if len(states) < len(token_ids):
-            return False
         self.path += states
-        return True
+        return len(states) == len(token_ids)
grammar-mask accept_is_all_or_nothing: each token is tried from the same state
-            here = after
+            here = self.path[-1]
grammar-mask ids_outside_are_not_allowed: a negative id counts from the end
-        if number == ENDED or not 0 <= token_id < len(self.tokens):
+        if number == ENDED or token_id >= len(self.tokens):
grammar-mask ids_outside_are_not_allowed: an IndexError for ids beyond the vocabulary
-        if number == ENDED or not 0 <= token_id < len(self.tokens):
+        if number == ENDED or token_id < 0:
grammar-mask validate_changes_nothing: it accepts what it validates
-        return list(token_ids[: len(self._follow(token_ids))])
+        states = self._follow(token_ids)
+        self.path += states
+        return list(token_ids[: len(states)])
grammar-mask validate_changes_nothing: all or nothing
-        return list(token_ids[: len(self._follow(token_ids))])
+        return list(token_ids) if len(self._follow(token_ids)) == len(token_ids) else []
grammar-mask rollback_undoes_tokens: one call is undone, not tokens
-        del self.path[len(self.path) - count :]
+        del self.path[-1 if count else len(self.path) :]
grammar-mask rollback_undoes_tokens: a count of 0 undoes everything
-        del self.path[len(self.path) - count :]
+        del self.path[max(1, -count % len(self.path)) :]
grammar-mask rollback_undoes_tokens: too many go back to the start
-        if not 0 <= count < len(self.path):
+        count = min(count, len(self.path) - 1)
+        if count < 0:
grammar-mask each_state_is_asked_for_once: a state is asked for whenever it is visited
-        found = self.states.get(number)
+        found = None
grammar-mask each_state_is_asked_for_once: states are kept for one mask
+        self.states.clear()
         allowed = [*self.eos] if self._state(number)[1] else []
grammar-mask a_mask_is_built_once: a mask for each request
+        self.masks = {ENDED: self.masks[ENDED]}
         return Place(self)
grammar-mask a_mask_is_built_once: a copy for each caller
-        return self.grammar._mask(self.path[-1])
+        return self.grammar._mask(self.path[-1])[:]
grammar-mask places_are_independent: all requests share a path
-        return Place(self)
+        self.place = getattr(self, "place", None) or Place(self)
+        return self.place
grammar-mask random_vocabularies: the walk ends at a node with tokens
-            if node.children:
+            if node.children and not node.token_ids:
grammar-mask the_engine_samples_with_it: bytes beyond ASCII lead nowhere
-                todo += [(child, moves[byte]) for byte, child in node.children.items() if byte in moves]
+                near = {byte: child for byte, child in node.children.items() if byte < 0xE5}
+                todo += [(child, moves[byte]) for byte, child in near.items() if byte in moves]
grammar-mask nothing_comes_after_the_end: it never says that it has ended
-        return self.path[-1] == ENDED
+        return self.path[-1] == ENDED - 1
"""
