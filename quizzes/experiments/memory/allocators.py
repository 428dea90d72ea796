"""Four allocators for sequences of unknown length.

Three need one contiguous run, as engines before PagedAttention did (the paper's baselines, section 6.1); the fourth is
the engine's block pool. Sizes are in token slots. Runs are found first-fit, lowest address first.
"""

from typing import Any, NamedTuple

from engine.frontend.block_space_manager import AllocStatus, BlockSpaceManager
from quizzes.experiments import BadArguments, Result, arg, experiment
from quizzes.experiments.charts import vega


class Contiguous:
    """First fit in one address range. A run keeps its size: `size_of` the final length."""

    def __init__(self, slots: int, max_len: int | None = None) -> None:
        self.slots = slots
        self.max_len = max_len
        """Slots per sequence; None: its final length, which only an oracle knows."""
        self.runs: dict[str, tuple[int, int]] = {}

    def size_of(self, final: int) -> int:
        return final if self.max_len is None else self.max_len

    def admit(self, name: str, prompt: int, final: int) -> bool:
        size, start = self.size_of(final), 0
        for first, length in sorted(self.runs.values()):
            if first - start >= size:
                break
            start = first + length
        if self.slots - start < size:
            return False
        self.runs[name] = (start, size)
        return True

    def grow(self, name: str) -> bool:
        return True

    def free(self, name: str) -> None:
        del self.runs[name]

    def slots_of(self, name: str) -> int:
        """Return the slots that a running sequence occupies."""
        return self.runs[name][1]

    @property
    def taken(self) -> int:
        return sum(length for _, length in self.runs.values())

    def fits_in_sum(self, prompt: int, final: int) -> bool:
        """Whether the free slots would suffice if they were contiguous."""
        return self.size_of(final) <= self.slots - self.taken


class Buddy(Contiguous):
    """Powers of two, each at a multiple of its size, so that neighbours can be joined again."""

    def size_of(self, final: int) -> int:
        return 1 << (final - 1).bit_length()

    def admit(self, name: str, prompt: int, final: int) -> bool:
        size = self.size_of(final)
        fitting = [(length, start) for start, length in self._free_in(0, self.usable) if length >= size]
        if not fitting:
            return False
        self.runs[name] = (min(fitting)[1], size)
        return True

    def _free_in(self, start: int, size: int) -> list[tuple[int, int]]:
        """Return the free buddies: the largest aligned powers of two that no run touches."""
        touching = [run for run in self.runs.values() if run[0] < start + size and start < run[0] + run[1]]
        if not touching:
            return [(start, size)]
        if any(run[1] >= size for run in touching):
            return []
        half = size // 2
        return self._free_in(start, half) + self._free_in(start + half, half)

    @property
    def usable(self) -> int:
        return 1 << (self.slots.bit_length() - 1)

    def fits_in_sum(self, prompt: int, final: int) -> bool:
        return self.size_of(final) <= self.usable - self.taken


class Paged:
    """The engine's block manager: a sequence takes any free block when it needs one."""

    def __init__(self, slots: int, block_size: int) -> None:
        self.block_size = block_size
        self.manager = BlockSpaceManager(slots // block_size, 0, block_size)

    def admit(self, name: str, prompt: int, final: int) -> bool:
        if self.manager.can_allocate(prompt) is not AllocStatus.OK:
            return False
        self.manager.allocate(name, prompt)
        return True

    def grow(self, name: str) -> bool:
        full = self.manager.num_tokens(name) % self.block_size == 0
        if full and not len(self.manager.device.free):
            return False
        self.manager.append_slot(name)
        return True

    def free(self, name: str) -> None:
        self.manager.free(name)

    def slots_of(self, name: str) -> int:
        return len(self.manager.block_table(name)) * self.block_size

    @property
    def taken(self) -> int:
        return self.manager.num_used_blocks * self.block_size

    def fits_in_sum(self, prompt: int, final: int) -> bool:
        return prompt <= len(self.manager.device.free) * self.block_size


@experiment("E05")
def allocator_race(
    slots: int = arg(1024, 16, 65_536),
    max_len: int = arg(512, 2, 4096),
    prompts: list[int] = arg([40, 100, 24, 60, 180, 33, 70, 20, 90, 50, 120, 30], 1, 2000, count=(1, 64)),
    outputs: list[int] = arg([60, 20, 100, 40, 30, 80, 50, 90, 25, 70, 35, 110], 1, 2000, count=(1, 64)),
    arrive_every: int = arg(0, 0, 100),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Serve the same requests on four allocators and compare concurrency and waste (2309.06180, sections 3 and 6).

    First come, first served. A step computes a prompt and its first token, or one token of every running request. If
    the paged pool runs out, the latest request frees all of its blocks and starts again.

    Returns: One list entry per allocator: reserve_max, buddy, first_fit, paged. reserve_max takes max_len slots, buddy
        the next power of two of the final length, first_fit exactly the final length (both know it in advance), paged a
        block at a time.
        names
        started_at_once [requests]: Admitted in step 0.
        peak_running [requests]
        steps [steps]: Steps until all have finished.
        waste [share]: Slots taken that hold no token, of all slots taken, over all steps.
        idle [share]: Slots of the whole memory that hold no token, over the steps with waiting requests.
        reserve, internal, external [share]: The three parts of the paper's figure 2, of the whole memory over the steps
            with waiting requests: slots taken for tokens that come later, slots taken that their request never fills,
            and free slots that the next request cannot use only because they are not contiguous. What is missing to
            `idle` is free memory, smaller than the next request.
        scattered [steps]: Steps in which the next request would fit if the free slots were contiguous.
        preemptions [preemptions]
    """
    if len(prompts) != len(outputs):
        raise BadArguments(f"{len(prompts)} prompts and {len(outputs)} outputs: one of each per request")
    finals = [prompt + output - 1 for prompt, output in zip(prompts, outputs, strict=True)]
    if max(finals) > max_len:
        raise BadArguments(f"a request needs {max(finals)} slots, more than max_len={max_len}")
    room = min(slots // block_size * block_size, 1 << (slots.bit_length() - 1))
    if max_len > slots or 1 << (max(finals) - 1).bit_length() > room:
        raise BadArguments(f"{slots} slots cannot hold the longest request on its own; raise slots")
    contestants: dict[str, Contiguous | Paged] = {
        "reserve_max": Contiguous(slots, max_len),
        "buddy": Buddy(slots),
        "first_fit": Contiguous(slots),
        "paged": Paged(slots, block_size),
    }
    runs = {name: _run(one, slots, prompts, finals, arrive_every) for name, one in contestants.items()}
    crowded = {name: [step for step in run.steps if step.crowded] for name, run in runs.items()}
    return Result(
        names=list(contestants),
        started_at_once=[run.steps[0].running for run in runs.values()],
        peak_running=[max(step.running for step in run.steps) for run in runs.values()],
        steps=[len(run.steps) for run in runs.values()],
        waste=[
            sum(step.taken - step.stored for step in run.steps) / sum(step.taken for step in run.steps)
            for run in runs.values()
        ],
        idle=[
            sum(slots - step.stored for step in steps) / (slots * len(steps)) if steps else 0.0
            for steps in crowded.values()
        ],
        **{part: [_share(steps, part, slots) for steps in crowded.values()] for part in _PARTS},
        scattered=[run.scattered for run in runs.values()],
        preemptions=[run.preemptions for run in runs.values()],
    )


class _Step(NamedTuple):
    """Slots of one step, and its requests."""

    taken: int
    stored: int
    running: int
    crowded: bool
    """Whether requests wait."""
    reserve: int
    internal: int
    external: int


_PARTS = ("reserve", "internal", "external")


def _share(steps: list[_Step], part: str, slots: int) -> float:
    return sum(getattr(step, part) for step in steps) / (slots * len(steps)) if steps else 0.0


class _Run(NamedTuple):
    steps: list[_Step]
    scattered: int
    preemptions: int


def _run(
    memory: Contiguous | Paged, slots: int, prompts: list[int], finals: list[int], arrive_every: int
) -> _Run:
    steps: list[_Step] = []
    scattered = preemptions = 0
    waiting = list(range(len(prompts)))
    length: dict[int, int] = {}
    while waiting or length:
        for name in sorted(length):
            while name in length and not memory.grow(str(name)):
                victim = max(length)  # the latest arrival
                memory.free(str(victim))
                del length[victim]
                waiting.insert(0, victim)
                preemptions += 1
            if name in length:
                length[name] += 1
        is_scattered = False
        while waiting and waiting[0] * arrive_every <= len(steps):
            name = waiting[0]
            if not memory.admit(str(name), prompts[name], finals[name]):
                is_scattered = memory.fits_in_sum(prompts[name], finals[name])
                break
            length[waiting.pop(0)] = prompts[name]
        scattered += is_scattered
        stored = sum(length.values())
        internal = sum(max(0, memory.slots_of(str(name)) - finals[name]) for name in length)
        reserve = memory.taken - stored - internal
        external = slots - memory.taken if is_scattered else 0
        steps.append(_Step(memory.taken, stored, len(length), bool(waiting), reserve, internal, external))
        for name in [name for name, tokens in length.items() if tokens == finals[name]]:
            memory.free(str(name))
            del length[name]
    return _Run(steps, scattered, preemptions)


def allocator_race_chart(result: Result) -> dict[str, Any]:
    """Share of the slots taken that hold no token, by allocator."""
    return vega(
        {"allocator": result.names, "empty": result.waste, "steps": result.steps},
        "bar",
        y=("allocator:N", {"sort": None}),
        x=("empty:Q", {"axis": {"format": "%"}}),
        tooltip="steps:Q",
    )
