"""Plausible wrong buffers, each with the check that must catch it."""

MUTANTS = """
backpressure each_token_comes_once_in_order: tokens stay in the buffer
-        tokens, stream.unread, stream.since = stream.unread, [], math.inf
+        tokens, stream.since = list(stream.unread), math.inf
backpressure each_token_comes_once_in_order: the newest put replaces what is unread
-        stream.unread += tokens
+        stream.unread = list(tokens)
backpressure what_was_missed_is_merged: one token a read
-        tokens, stream.unread, stream.since = stream.unread, [], math.inf
+        tokens, stream.unread, stream.since = stream.unread[:1], stream.unread[1:], math.inf
backpressure the_end_comes_with_the_last_tokens: the reason needs a read of its own
-        reason = "slow" if stream.is_cut_off else stream.reason
+        reason = "slow" if stream.is_cut_off else stream.reason if not tokens else None
backpressure the_end_comes_with_the_last_tokens: the stream stays open
-        if reason is not None:
-            del self.streams[request_id]
         return tokens, reason
backpressure a_reader_is_woken_once: woken for each put
-        if stream.since < math.inf or not (tokens or reason is not None):
+        if not (tokens or reason is not None):
backpressure a_reader_is_woken_once: an end without tokens wakes no reader
-        if stream.since < math.inf or not (tokens or reason is not None):
+        if stream.since < math.inf or not tokens:
backpressure a_reader_is_woken_once: a put without tokens wakes
-        if stream.since < math.inf or not (tokens or reason is not None):
+        if stream.since < math.inf:
backpressure a_promise_covers_what_may_come: only what is unread counts
-        self._shrink(now, stream, stream.promise - len(tokens))
+        self._shrink(now, stream, 0)
backpressure a_promise_covers_what_may_come: a promise is kept until the end
-        self._shrink(now, stream, stream.promise - len(tokens))
+        if stream.reason is not None:
+            self._shrink(now, stream, 0)
backpressure a_promise_covers_what_may_come: an end releases nothing
-            self._shrink(now, stream, len(stream.unread))
+            self._shrink(now, stream, stream.promise)
backpressure a_promise_covers_what_may_come: an end releases all, unread tokens included
-            self._shrink(now, stream, len(stream.unread))
+            self._shrink(now, stream, 0)
backpressure the_door_keeps_the_capacity: the unread tokens are compared with the capacity
-        if (lack := self.num_promised + max_tokens - self.capacity) > 0:
+        num_unread = sum(len(stream.unread) for stream in self.streams.values())
+        if (lack := num_unread + max_tokens - self.capacity) > 0:
backpressure the_door_keeps_the_capacity: admitted while there is any room
-        if (lack := self.num_promised + max_tokens - self.capacity) > 0:
+        if (lack := self.num_promised + 1 - self.capacity) > 0:
backpressure the_door_keeps_the_capacity: 429 for what can never fit
-        if max_tokens > self.capacity:
+        if max_tokens > 10**9:
backpressure the_door_keeps_the_capacity: a refused request keeps its promise
+            self.num_promised = min(self.num_promised + max_tokens, self.capacity)
             return 429, {"Retry-After": str(self._retry_after(now, lack))}
backpressure retry_after_follows_the_readers: always 1
-            return 429, {"Retry-After": str(self._retry_after(now, lack))}
+            return 429, {"Retry-After": "1"}
backpressure retry_after_follows_the_readers: a number instead of text
-            return 429, {"Retry-After": str(self._retry_after(now, lack))}
+            return 429, {"Retry-After": self._retry_after(now, lack)}
backpressure retry_after_follows_the_readers: all since the start, not the window
-        while self.released and self.released[0][0] <= now - self.window_s:
+        while self.released and self.released[0][0] < 0:
backpressure retry_after_follows_the_readers: a release at the edge of the window still counts
-        while self.released and self.released[0][0] <= now - self.window_s:
+        while self.released and self.released[0][0] < now - self.window_s:
backpressure retry_after_follows_the_readers: rounded down
-        return min(LONGEST_S, max(1, math.ceil(lack * self.window_s / self.num_released)))
+        return min(LONGEST_S, max(1, int(lack * self.window_s / self.num_released)))
backpressure retry_after_follows_the_readers: the whole request is missing
-        if (lack := self.num_promised + max_tokens - self.capacity) > 0:
-            return 429, {"Retry-After": str(self._retry_after(now, lack))}
+        if self.num_promised + max_tokens > self.capacity:
+            return 429, {"Retry-After": str(self._retry_after(now, max_tokens))}
backpressure a_slow_reader_holds_up_no_one: a buffer of 32 tokens drops the rest
-        stream.unread += tokens
+        stream.unread = (stream.unread + list(tokens))[:32]
backpressure a_slow_reader_holds_up_no_one: a full buffer raises
-        if stream.reason is not None or stream.num_put + len(tokens) > stream.max_tokens:
+        if stream.reason is not None or len(stream.unread) + len(tokens) > 32:
backpressure a_reader_that_is_too_slow_is_cut_off: the reader sees an ordinary end
-        reason = "slow" if stream.is_cut_off else stream.reason
+        reason = "stop" if stream.is_cut_off else stream.reason
backpressure a_reader_that_is_too_slow_is_cut_off: a stream that is cut off keeps its promise
                 stream.is_cut_off, stream.unread, stream.since = True, [], math.inf
-                self._shrink(now, stream, 0)
backpressure a_reader_that_is_too_slow_is_cut_off: named in every call
-                stream.is_cut_off, stream.unread, stream.since = True, [], math.inf
+                stream.is_cut_off, stream.unread = True, []
backpressure a_reader_that_is_too_slow_is_cut_off: an ended stream waits for ever
-            if now - stream.since > self.patience_s:
+            if now - stream.since > self.patience_s and stream.reason is None:
backpressure a_reader_that_is_too_slow_is_cut_off: at patience_s, not above it
-            if now - stream.since > self.patience_s:
+            if now - stream.since >= self.patience_s:
backpressure a_reader_that_is_too_slow_is_cut_off: the newest put counts, so a stream never gets late
-        if stream.since < math.inf or not (tokens or reason is not None):
+        was_empty = stream.since == math.inf
+        if not (tokens or reason is not None):
             return False
         stream.since = now
-        return True
+        return was_empty
backpressure only_what_is_unread_ages: a stream ages from its opening on
-        self.since = math.inf
+        self.since = -math.inf
backpressure only_what_is_unread_ages: a read does not stop the time
-        tokens, stream.unread, stream.since = stream.unread, [], math.inf
+        tokens, stream.unread = stream.unread, []
backpressure a_client_that_leaves: the promise outlives the client
-        self._shrink(now, stream, 0)
         return stream.reason is None and not stream.is_cut_off
backpressure a_client_that_leaves: an ended request is aborted again
-        return stream.reason is None and not stream.is_cut_off
+        return not stream.is_cut_off
backpressure a_client_that_leaves: tokens for it are an error
-        if stream is None or stream.is_cut_off:
+        if stream is None:
+            raise ValueError(request_id)
+        if stream.is_cut_off:
             return False
backpressure wrong_calls_are_refused: more tokens than were promised
-        if stream.reason is not None or stream.num_put + len(tokens) > stream.max_tokens:
+        if stream.reason is not None:
backpressure wrong_calls_are_refused: tokens after the end
-        if stream.reason is not None or stream.num_put + len(tokens) > stream.max_tokens:
+        if stream.num_put + len(tokens) > stream.max_tokens:
backpressure a_reader_that_is_too_slow_is_cut_off: its id is free before the reader was told
-        if request_id in self.streams or max_tokens < 1:
+        known = self.streams.get(request_id)
+        if (known is not None and not known.is_cut_off) or max_tokens < 1:
backpressure retry_after_follows_the_readers: one release leaves the window in each call
-        while self.released and self.released[0][0] <= now - self.window_s:
+        if self.released and self.released[0][0] <= now - self.window_s:
backpressure random_lives: an ended stream keeps its promise when its client leaves
-        self._shrink(now, stream, 0)
+        if stream.reason is None:
+            self._shrink(now, stream, 0)
         return stream.reason is None and not stream.is_cut_off
backpressure the_engine_streams_through_it: tokens that come with the end are lost if others are unread
-        stream.unread += tokens
+        stream.unread += tokens if reason is None or not stream.unread else []
backpressure promised_needs_no_sum: adds up all streams
-        return self.num_promised
+        return sum(stream.promise for stream in self.streams.values())
backpressure wrong_calls_are_refused: a window of 0
-        if min(capacity, patience_s, window_s) <= 0:
+        if min(capacity, patience_s) <= 0 or window_s < -1e9:
backpressure wrong_calls_are_refused: an unknown stream reads as empty
         if stream is None:
-            raise ValueError(f"stream {request_id!r} is not open")
+            return [], None
backpressure wrong_calls_are_refused: an open id is opened again
-        if request_id in self.streams or max_tokens < 1:
+        if max_tokens < 1:
backpressure random_lives: an empty read ends the stream
-        if reason is not None:
+        if reason is not None or not tokens:
             del self.streams[request_id]
backpressure random_lives: in the order of their waiting
-        for request_id, stream in self.streams.items():
+        for request_id, stream in sorted(self.streams.items(), key=lambda item: item[1].since):
backpressure a_reader_that_is_too_slow_is_cut_off: the reader still gets the old tokens
-                stream.is_cut_off, stream.unread, stream.since = True, [], math.inf
+                stream.is_cut_off, stream.since = True, math.inf
backpressure a_client_that_leaves: an unknown id is aborted
         if stream is None:
-            return False
+            return True
         self._shrink(now, stream, 0)
"""
