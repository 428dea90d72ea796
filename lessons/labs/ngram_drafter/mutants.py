"""Plausible wrong drafters, each with the check that must catch it."""

MUTANTS = """
ngram-drafter drafts_follow_the_earlier_ending: the occurrence itself, not what followed
-                return text[start : start + k]
+                return text[start - size : start - size + k]
ngram-drafter drafts_follow_the_earlier_ending: one token too late
-                return text[start : start + k]
+                return text[start + 1 : start + 1 + k]
ngram-drafter drafts_follow_the_earlier_ending: the ending finds itself
-                ngram = tuple(text[end - size :])
-                if not self._first or ngram not in followers:
-                    followers[ngram] = end
+                pass
             text.append(token)
+            for size in self._sizes:
+                followers[tuple(text[-size:])] = len(text)
ngram-drafter the_longest_ending_counts: the shortest first
-        for size in reversed(self._sizes):
+        for size in self._sizes:
ngram-drafter the_longest_ending_counts: max_n is never tried
-        self._sizes = range(min_n, max_n + 1)
+        self._sizes = range(min_n, max(max_n, min_n + 1))
ngram-drafter the_longest_ending_counts: the occurrence that is the latest, of any length
-        for size in reversed(self._sizes):
-            start = self._followers.get(tuple(text[-size:]), 0) if k > 0 and size < len(text) else 0
-            if start:
-                return text[start : start + k]
-        return []
+        sizes = [size for size in self._sizes if size < len(text)]
+        start = max((self._followers.get(tuple(text[-size:]), 0) for size in sizes), default=0)
+        return text[start : start + k] if start and k > 0 else []
ngram-drafter the_last_occurrence_counts: the first one
-                if not self._first or ngram not in followers:
+                if ngram not in followers:
ngram-drafter first_takes_the_first_occurrence: the last one
-                if not self._first or ngram not in followers:
-                    followers[ngram] = end
+                followers[ngram] = end
ngram-drafter first_takes_the_first_occurrence: the place that is the earliest, of any length
-        for size in reversed(self._sizes):
+        sizes = [size for size in self._sizes if size < len(text)]
+        starts = {self._followers.get(tuple(text[-size:]), len(text)): size for size in sizes}
+        for size in [starts[min(starts)]] if self._first and starts else reversed(self._sizes):
ngram-drafter short_endings_are_not_enough: down to one token
-        self._sizes = range(min_n, max_n + 1)
+        self._sizes = range(1, max_n + 1)
ngram-drafter short_endings_are_not_enough: min_n is not enough either
-        self._sizes = range(min_n, max_n + 1)
+        self._sizes = range(min_n + (min_n < max_n), max_n + 1)
ngram-drafter occurrences_may_overlap: they may not
-                return text[start : start + k]
+                return text[start : start + k] if start <= len(text) - size else []
         return []
ngram-drafter no_more_than_k: everything that followed
-                return text[start : start + k]
+                return text[start:]
ngram-drafter no_more_than_k: the text goes on with its drafts
-                return text[start : start + k]
+                return [text[start + at % (len(text) - start)] for at in range(k)]
ngram-drafter no_more_than_k: a negative k counts from the end
-            start = self._followers.get(tuple(text[-size:]), 0) if k > 0 and size < len(text) else 0
+            start = self._followers.get(tuple(text[-size:]), 0) if k and size < len(text) else 0
ngram-drafter pieces_are_one_text: n-grams end with their piece
+                if size > end - begin:
+                    break
                 ngram = tuple(text[end - size :])
@@
-        text, followers = self._text, self._followers
+        text, followers, begin = self._text, self._followers, len(self._text)
ngram-drafter pieces_are_one_text: drafts become text
-                return text[start : start + k]
+                drafts = text[start : start + k]
+                self.extend(drafts)
+                return drafts
ngram-drafter pieces_are_one_text: the first piece is kept, not copied
         text, followers = self._text, self._followers
+        if not text:
+            self._text = text = token_ids
+            for end in range(1, len(text)):
+                for size in self._sizes:
+                    if size <= end:
+                        ngram = tuple(text[end - size : end])
+                        if not self._first or ngram not in followers:
+                            followers[ngram] = end
+            return
         for token in token_ids:
ngram-drafter drafters_share_nothing: one index for all requests
-        self._followers: dict[tuple[int, ...], int] = {}
+        self._followers = INDEX
@@
+INDEX: dict[tuple[int, ...], int] = {}
+
+
 class NgramDrafter:
ngram-drafter bad_sizes_are_refused: an ending of no tokens
-        if not 1 <= min_n <= max_n:
+        if not 0 <= min_n <= max_n:
ngram-drafter bad_sizes_are_refused: no size at all
-        if not 1 <= min_n <= max_n:
+        if min_n < 1:
ngram-drafter random_texts: the index knows hashes, not n-grams
-                ngram = tuple(text[end - size :])
+                ngram = (size, sum(text[end - size :]))
@@
-            start = self._followers.get(tuple(text[-size:]), 0) if k > 0 and size < len(text) else 0
+            found = (size, sum(text[-size:]))
+            start = self._followers.get(found, 0) if k > 0 and size < len(text) else 0
ngram-drafter a_step_costs_the_same_in_a_long_text: a search of the bytes in every step
+        self._data += array("i", token_ids).tobytes()
         text, followers = self._text, self._followers
         for token in token_ids:
@@
+        self._data = b""
         self._text: list[int] = []
@@
-            start = self._followers.get(tuple(text[-size:]), 0) if k > 0 and size < len(text) else 0
-            if start:
-                return text[start : start + k]
+            place = self._data.rfind(self._data[-4 * size :], 0, len(self._data) - 4) if k > 0 else -1
+            if place >= 0 and size < len(text):
+                return text[place // 4 + size : place // 4 + size + k]
@@
+from array import array
 from collections.abc import Sequence
ngram-drafter a_step_costs_the_same_in_a_long_text: one index of the shortest n-grams, then a walk over their places
-                ngram = tuple(text[end - size :])
-                if not self._first or ngram not in followers:
-                    followers[ngram] = end
+                if size == self._sizes[0]:
+                    followers.setdefault(tuple(text[end - size :]), []).append(end)
@@
+        places = self._followers.get(tuple(text[-self._sizes[0] :]), [])
         for size in reversed(self._sizes):
-            start = self._followers.get(tuple(text[-size:]), 0) if k > 0 and size < len(text) else 0
-            if start:
-                return text[start : start + k]
+            for start in reversed(places):
+                if text[start - size : start] == text[-size:]:
+                    return text[start : start + k]
         return []
ngram-drafter the_engine_drafts_with_it: token ids have ten bits
-            text.append(token)
+            text.append(token & 1023)
ngram-drafter a_step_costs_the_same_in_a_long_text: extend makes a new list of the text
-            text.append(token)
+            text = self._text = [*text, token] if len(text) % 2 else text + [token]
ngram-drafter a_step_costs_the_same_in_a_long_text: propose looks at a copy of the text
-        text = self._text
+        text = list(self._text)
         for size in reversed(self._sizes):
"""
