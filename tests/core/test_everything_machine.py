"""Adapters, drafts, grammars, swapping, priorities, aborts and interrupts in any order that hypothesis can think of.

The shadow-KV oracle watches every step. A failure is shrunk to the few calls that make it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import CacheConfig, SchedulerConfig
from engine.config.cache import TierConfig
from tests.core.shadow_kv import Simulation
from tests.core.workloads import VOCAB, Abort, Ask, Workload

SHARED = [(7 * i + 3) % VOCAB for i in range(40)]
"""Prompts are pieces of it, so that they share prefixes."""


class Everything(RuleBasedStateMachine):
    """One crowded scheduler, from its first request to its last."""

    @initialize(
        num_blocks=st.integers(8, 24),
        block_size=st.sampled_from([1, 2, 4]),
        budget=st.sampled_from([4, 9, 32]),
        max_num_seqs=st.integers(1, 5),
        policy=st.sampled_from(["fcfs", "priority"]),
        host_blocks=st.sampled_from([1, 4, 20]),
        offload=st.booleans(),
        max_loras=st.integers(1, 2),
        lora_prefetch=st.integers(0, 2),
        drafts=st.sampled_from([0, 2, 4]),
        looks_ahead=st.booleans(),
        seed=st.integers(0, 5),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        budget: int,
        max_num_seqs: int,
        policy: str,
        host_blocks: int,
        offload: bool,
        max_loras: int,
        lora_prefetch: int,
        drafts: int,
        looks_ahead: bool,
        seed: int,
    ) -> None:
        scheduler = SchedulerConfig(
            max_num_batched_tokens=max(budget, max_num_seqs),
            max_num_seqs=max_num_seqs,
            max_model_len=60,
            policy=policy,
            max_loras=max_loras,
            max_cpu_loras=max(max_loras, lora_prefetch),
            lora_prefetch=lora_prefetch,
            num_lookahead_tokens=drafts if looks_ahead else 0,
        )
        cache = CacheConfig(num_blocks, block_size, tiers=TierConfig(host_blocks, swap=True, offload=offload))
        self.workload = Workload(scheduler, cache, [], draft_length=drafts, draft_quality=0.7, seed=seed)
        self.simulation = Simulation(self.workload)
        self.now = 0
        self.num_asked = 0

    @rule(
        length=st.integers(1, 24),
        own=st.integers(0, 3),
        max_tokens=st.integers(1, 12),
        lora_key=st.sampled_from([None, "a", "b", "c"]),
        cache_salt=st.sampled_from([None, None, "tenant"]),
        priority=st.integers(0, 2),
        compile_steps=st.sampled_from([None, None, 0, 3]),
        compile_fails=st.booleans(),
    )
    def ask(
        self,
        length: int,
        own: int,
        max_tokens: int,
        lora_key: str | None,
        cache_salt: str | None,
        priority: int,
        compile_steps: int | None,
        compile_fails: bool,
    ) -> None:
        prompt = [*SHARED[: max(0, length - own)], *[(self.num_asked + i) % VOCAB for i in range(own)]]
        self.simulation._add(
            Ask(
                request_id=f"r{self.num_asked}",
                step=self.now,
                prompt=prompt or [1],
                max_tokens=max_tokens,
                priority=priority,
                arrival=float(self.now),
                lora_key=lora_key,
                cache_salt=cache_salt,
                compile_steps=compile_steps,
                compile_fails=compile_fails and compile_steps is not None,
            )
        )
        self.num_asked += 1

    @rule(count=st.integers(1, 4))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.simulation._step(self.now)
            self.now += 1

    @precondition(lambda self: self.simulation.scheduler.requests)
    @rule(
        data=st.data(), moment=st.sampled_from(["before", "in_flight", "error", "after"]), again=st.booleans()
    )
    def abort(self, data: st.DataObject, moment: str, again: bool) -> None:
        victim = data.draw(st.sampled_from(sorted(self.simulation.scheduler.requests)))
        self.workload.aborts.append(Abort(victim, self.now, moment, again))
        self.steps(1)

    @precondition(lambda self: self.simulation.scheduler.running)
    @rule()
    def interrupt(self) -> None:
        """Ctrl-C in the middle of a step."""
        self.workload.interrupts.append(self.now)
        self.steps(1)

    @invariant()
    def nothing_is_out_of_place(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "simulation"):
            return
        last = self.now + 4000
        while self.simulation.scheduler.has_unfinished():
            self.steps(1)
            assert self.now < last, "the scheduler does not get anywhere"
        self.simulation._check_end()


TestEverything = Everything.TestCase
TestEverything.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
