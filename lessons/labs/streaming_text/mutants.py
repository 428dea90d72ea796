"""Plausible wrong streams, each with the check that must catch it."""

MUTANTS = """
streaming-text a_character_comes_whole: each token decoded alone
-        return "".join(map(self._take, self._utf8.decode(piece)))
+        return "".join(map(self._take, piece.decode("utf-8", "replace")))
streaming-text a_character_comes_whole: bytes that are wrong are dropped
-        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
+        self._utf8 = codecs.getincrementaldecoder("utf-8")("ignore")
streaming-text the_end_releases_the_rest: an unfinished character is dropped
-        rest = "".join(map(self._take, self._utf8.decode(b"", final=True))) + self._held
+        rest = self._held
streaming-text the_end_releases_the_rest: held text is dropped
-        rest = "".join(map(self._take, self._utf8.decode(b"", final=True))) + self._held
+        rest = "".join(map(self._take, self._utf8.decode(b"", final=True)))
streaming-text the_end_releases_the_rest: twice
-        self._held = ""
         return rest
streaming-text a_stop_string_across_tokens: only within a token
-        return "".join(map(self._take, self._utf8.decode(piece)))
+        text = self._utf8.decode(piece)
+        for stop in self._stop:
+            if stop in text:
+                self._stopped = stop
+                return text[: text.index(stop)]
+        return text
streaming-text nothing_is_sent_that_may_become_a_stop: nothing is held back
-        num_safe = len(self._held) - self._num_hopeful()
+        num_safe = len(self._held)
streaming-text nothing_is_sent_that_may_become_a_stop: only one character
-        num_safe = len(self._held) - self._num_hopeful()
+        num_safe = len(self._held) - min(1, self._num_hopeful())
streaming-text nothing_is_sent_that_may_become_a_stop: the shortest beginning, not the longest
-        return max(lengths, default=0)
+        return min(lengths, default=0)
streaming-text no_more_is_held_than_may_become_a_stop: always the longest less one
-        num_safe = len(self._held) - self._num_hopeful()
+        num_safe = max(0, len(self._held) - max((len(stop) - 1 for stop in self._stop), default=0))
streaming-text no_more_is_held_than_may_become_a_stop: a mismatch releases nothing before the next
-        num_safe = len(self._held) - self._num_hopeful()
+        num_safe = len(self._held) if not self._num_hopeful() else 0
streaming-text the_first_end_wins: the first in the list
-            self._stopped = max(ended, key=len)
+            self._stopped = ended[0]
streaming-text the_first_end_wins: the shortest
-            self._stopped = max(ended, key=len)
+            self._stopped = min(ended, key=len)
streaming-text the_stop_string_stays_only_if_asked: always
-            return before + self._stopped if self._include_stop else before
+            return before + self._stopped
streaming-text the_stop_string_stays_only_if_asked: never
-            return before + self._stopped if self._include_stop else before
+            return before
streaming-text nothing_comes_after_a_stop: the text goes on
-        if self._stopped is not None:
-            return ""
         self._held += character
streaming-text an_empty_stop_string_is_refused: it stops at once
-        if not all(stop):
-            raise ValueError("a stop string must not be empty")
-        self._stop = list(stop)
+        self._stop = [each for each in stop if each]
streaming-text random_pieces: only the first two stop strings hold text back
-            size for stop in self._stop for size in range(1, len(stop)) if self._held.endswith(stop[:size])
+            size for stop in self._stop[:2] for size in range(1, len(stop)) if self._held.endswith(stop[:size])
streaming-text the_engines_text_is_the_same: a token has at most four characters
-        return "".join(map(self._take, self._utf8.decode(piece)))
+        text = self._utf8.decode(piece)
+        return "".join(map(self._take, text[:4]))
streaming-text a_stop_string_across_tokens: the stop string is not told
-        return self._stopped
+        return None if self._stopped is None else ""
"""
