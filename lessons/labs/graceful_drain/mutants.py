"""Plausible wrong drains, each with the check that must catch it."""

MUTANTS = """
graceful-drain a_serving_replica_admits: an empty replica is stopped, signal or not
-        if not self.is_signalled:
+        if not self.is_signalled and (self.in_flight or now < 1e5):
             return "serving"
graceful-drain a_serving_replica_admits: not live without requests
-        return 200 if state == "serving" or (probe == "live" and state != "stopped") else 503
+        return 200 if self.in_flight and state != "stopped" else 503
graceful-drain a_signal_refuses_new_requests: until the deadline all come in
-        if self.state(now) != "serving":
+        if self.state(now) not in ("serving", "draining"):
graceful-drain a_signal_refuses_new_requests: no Retry-After
-            return 503, {"Retry-After": str(self.retry_after_s), "Connection": "close"}
+            return 503, {"Connection": "close"}
graceful-drain a_signal_refuses_new_requests: a header that is a number
-            return 503, {"Retry-After": str(self.retry_after_s), "Connection": "close"}
+            return 503, {"Retry-After": self.retry_after_s, "Connection": "close"}
graceful-drain a_signal_refuses_new_requests: 429, as if the client were at fault
-            return 503, {"Retry-After": str(self.retry_after_s), "Connection": "close"}
+            return 429, {"Retry-After": str(self.retry_after_s), "Connection": "close"}
graceful-drain ready_and_live_differ: ready while requests run
-        return 200 if state == "serving" or (probe == "live" and state != "stopped") else 503
+        return 200 if state != "stopped" else 503
graceful-drain ready_and_live_differ: not live while it drains
-        return 200 if state == "serving" or (probe == "live" and state != "stopped") else 503
+        return 200 if state == "serving" else 503
graceful-drain requests_run_until_the_deadline: the first signal aborts
-            self.is_signalled, self.deadline = True, now + self.limit_s
+            self.is_signalled, self.deadline = True, now
graceful-drain requests_run_until_the_deadline: only after the deadline
-        return "aborting" if now >= self.deadline else "draining"
+        return "aborting" if now > self.deadline else "draining"
graceful-drain each_is_aborted_once: named in every tick
-        named = [name for name, was_named in self.in_flight.items() if not was_named]
+        named = list(self.in_flight)
graceful-drain each_is_aborted_once: sorted by id
-        named = [name for name, was_named in self.in_flight.items() if not was_named]
+        named = sorted(name for name, was_named in self.in_flight.items() if not was_named)
graceful-drain each_is_aborted_once: named ones no longer count
-        self.in_flight.update(dict.fromkeys(named, True))
+        for name in named:
+            del self.in_flight[name]
graceful-drain it_stops_when_empty: it waits for the deadline
-        if not self.in_flight or now >= min(self.last, self.deadline + self.abort_s):
+        if now >= self.deadline + (self.abort_s if self.in_flight else 0):
graceful-drain it_stops_when_empty: an unknown id ends it all
-            self.in_flight.pop(request_id, None)
+            self.in_flight.pop(request_id if request_id else next(iter(self.in_flight), ""), None)
graceful-drain signals_move_on: a second signal is ignored
-        elif state == "draining":
+        elif state == "nothing":
             self.deadline = now
graceful-drain signals_move_on: a second signal starts the time again
         elif state == "draining":
-            self.deadline = now
+            self.deadline = now + self.limit_s
graceful-drain signals_move_on: while aborting a signal changes nothing
-        elif state == "aborting":
+        elif state == "nothing":
             self.last = now
graceful-drain an_abort_has_a_limit: it waits for requests that never end
-        if not self.in_flight or now >= min(self.last, self.deadline + self.abort_s):
+        if not self.in_flight or now >= self.last:
graceful-drain an_abort_has_a_limit: no time for aborted ones
-        if not self.in_flight or now >= min(self.last, self.deadline + self.abort_s):
+        if not self.in_flight or now >= min(self.last, self.deadline + 0.5):
graceful-drain the_exit_code_tells: always 0
-        return 1 if self.num_aborted or self.in_flight else 0
+        return 0
graceful-drain the_exit_code_tells: only what was cut off counts
-        return 1 if self.num_aborted or self.in_flight else 0
+        return 1 if self.in_flight else 0
graceful-drain the_exit_code_tells: a request that ends after the exit changes the code
-        if self.state(now) != "stopped":
-            self.in_flight.pop(request_id, None)
+        self.in_flight.pop(request_id, None)
graceful-drain the_exit_code_tells: 1 if the deadline has passed
-        return 1 if self.num_aborted or self.in_flight else 0
+        return 1 if now >= self.deadline else 0
graceful-drain wrong_calls_are_refused: an id twice
-        if request_id in self.in_flight:
+        if request_id == "":
graceful-drain wrong_calls_are_refused: any probe
-        if probe not in ("ready", "live"):
+        if probe == "":
graceful-drain random_lives: the abort time counts from the first signal
-            self.deadline = now
+            self.deadline, self.abort_s = now, max(0.0, self.deadline + self.abort_s - now)
graceful-drain a_simulated_replica_drains: three aborts per tick
-        named = [name for name, was_named in self.in_flight.items() if not was_named]
+        named = [name for name, was_named in list(self.in_flight.items())[:3] if not was_named]
graceful-drain wrong_calls_are_refused: clients are told to come back at once
-        if limit_s < 0 or abort_s < 0 or retry_after_s < 1:
+        if limit_s < 0 or abort_s < 0 or retry_after_s < 0:
"""
