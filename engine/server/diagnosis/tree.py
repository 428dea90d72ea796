"""The decision trees: all rules, in the order in which they are asked.

The first cause whose replies all hold is named. So a rule stands before those whose symptoms its cause produces: times
that cannot be trusted before slow ones, failures before memory, memory before prefix hits, and these before queues.

Limits are shares and ratios, so that they hold on any machine. Limits in seconds are those of a human or a clock.
"""

from __future__ import annotations

from engine.server.diagnosis import rules_cache, rules_requests, rules_times

TREE = (*rules_requests.RULES, *rules_cache.RULES, *rules_times.RULES)
