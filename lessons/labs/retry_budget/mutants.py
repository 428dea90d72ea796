"""Plausible wrong retry policies, each with the check that must catch it."""

MUTANTS = """
retry-budget only_passing_failures_are_retried: an engine that died is asked again
-RETRIED = (None, 429, 502, 503, 504)
+RETRIED = (None, 429, 500, 502, 503, 504)
retry-budget only_passing_failures_are_retried: a broken connection is not
-RETRIED = (None, 429, 502, 503, 504)
+RETRIED = (429, 502, 503, 504)
retry-budget an_answer_is_not_begun_twice: whatever runs twice
-        may_repeat = safe and not started and status in RETRIED
+        may_repeat = not started and status in RETRIED
retry-budget an_answer_is_not_begun_twice: the client sees the beginning twice
-        may_repeat = safe and not started and status in RETRIED
+        may_repeat = safe and status in RETRIED
retry-budget an_answer_is_not_begun_twice: without a status it cannot have begun
-        may_repeat = safe and not started and status in RETRIED
+        may_repeat = status in RETRIED and (status is None or (safe and not started))
retry-budget the_window_doubles_and_is_drawn_from: no jitter
-        wait = seconds_of(retry_after, now) + self.random() * window
+        wait = seconds_of(retry_after, now) + window
retry-budget the_window_doubles_and_is_drawn_from: half of the window is fixed
-        wait = seconds_of(retry_after, now) + self.random() * window
+        wait = seconds_of(retry_after, now) + (0.5 + self.random() / 2) * window
retry-budget the_window_doubles_and_is_drawn_from: the first window is doubled already
-        window = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 1000))
+        window = min(self.cap_s, self.base_s * 2.0 ** min(attempt, 1000))
retry-budget the_window_doubles_and_is_drawn_from: it grows by base_s
-        window = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 1000))
+        window = min(self.cap_s, self.base_s * attempt)
retry-budget the_window_has_a_cap: it grows for ever
-        window = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 1000))
+        window = self.base_s * 2.0 ** min(attempt - 1, 1000)
retry-budget the_window_has_a_cap: a float overflows
-        window = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 1000))
+        window = min(self.cap_s, self.base_s * 2.0 ** (attempt - 1))
retry-budget attempts_are_counted: one more than most
-        if not may_repeat or attempt > self.most:
+        if not may_repeat or attempt > self.most + 1:
retry-budget attempts_are_counted: one fewer than most
-        if not may_repeat or attempt > self.most:
+        if not may_repeat or attempt >= self.most:
retry-budget retry_after_is_honoured: the larger of both, so that all clients return together
-        wait = seconds_of(retry_after, now) + self.random() * window
+        wait = max(seconds_of(retry_after, now), self.random() * window)
retry-budget retry_after_is_honoured: dates are not read
-        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
+        return 0.0
retry-budget retry_after_is_honoured: a date that has passed shortens the wait
-        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
+        return parsedate_to_datetime(text).timestamp() - now
retry-budget retry_after_is_honoured: float() reads more than digits
-    if text.isascii() and text.isdigit():
+    try:
         return float(text)
+    except ValueError:
+        pass
retry-budget retry_after_is_honoured: digits of other scripts
-    if text.isascii() and text.isdigit():
+    if text.isdigit():
retry-budget no_retry_starts_after_the_deadline: only the past counts
-        if now + wait >= deadline or self.level < 1 - 1e-9:
+        if now >= deadline or self.level < 1 - 1e-9:
retry-budget no_retry_starts_after_the_deadline: at the deadline is in time
-        if now + wait >= deadline or self.level < 1 - 1e-9:
+        if now + wait > deadline or self.level < 1 - 1e-9:
retry-budget the_budget_is_a_share: no budget
-        if now + wait >= deadline or self.level < 1 - 1e-9:
+        if now + wait >= deadline:
retry-budget the_budget_is_a_share: ten times 0.1 is less than 1
-        if now + wait >= deadline or self.level < 1 - 1e-9:
+        if now + wait >= deadline or self.level < 1:
retry-budget the_budget_is_a_share: quiet times are saved without limit
-        self.level = min(self.reserve, self.level + self.share)
+        self.level = self.level + self.share
retry-budget the_budget_is_a_share: starts empty
-        self.level = float(reserve)
+        self.level = 0.0
retry-budget a_refusal_takes_nothing: a retry past the deadline is paid for
-        if now + wait >= deadline or self.level < 1 - 1e-9:
+        self.level -= 1
+        if now + wait >= deadline or self.level < -1e-9:
             return None
-        self.level -= 1
retry-budget a_refusal_takes_nothing: whatever fails is paid for
         may_repeat = safe and not started and status in RETRIED
+        self.level -= not may_repeat
retry-budget wrong_settings_are_refused: any share
-        if not (0 <= share <= 1 and reserve >= 0 and most >= 0 and 0 < base_s <= cap_s):
+        if not (reserve >= 0 and most >= 0 and 0 < base_s <= cap_s):
retry-budget random_failures: a retry earns a share as well
-        self.level -= 1
+        self.level -= 1 - self.share
retry-budget a_storm_stays_within_the_budget: each second attempt is free
-        self.level -= 1
+        self.level -= attempt > 1
retry-budget the_gateway_obeys_it: only first attempts are paid for
-        self.level -= 1
+        self.level -= attempt == 1
retry-budget retry_after_is_honoured: spaces hide the number
-    text = (retry_after or "").strip()
+    text = retry_after or ""
retry-budget chance_is_asked_once: chance is asked for each failure
+        drawn = self.random()
         if not may_repeat or attempt > self.most:
             return None
         window = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 1000))
-        wait = seconds_of(retry_after, now) + self.random() * window
+        wait = seconds_of(retry_after, now) + drawn * window
"""
