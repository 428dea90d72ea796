"""Checks of the lab encoder-cache: single rules, random requests, then the engine with images on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from random import Random
from typing import Any, NamedTuple

from engine.config import CacheConfig, SchedulerConfig
from engine.core.encoder_cache import EncoderCache
from engine.core.observer import StepObserver
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler, StepPlan
from engine.core.stats import StepStats
from lessons.course.checking import Failed, Learner, check, constant, refused, run_fewest
from prep_common.sandbox import GuestError, GuestStopped

LAB = "encoder-cache"
Image = tuple[str, int, int]
Op = tuple[Any, ...]
"""("add", id, images, start), ("row", id, count), ("end",) or ("remove", id).

A row asks `fit` and takes what fits from the request's position on. "end" ends a step: it reports the tokens that its
rows computed, in order of the rows, then asks for the dropped hashes.
"""


class Book:
    """A second opinion: entries in a list, and each answer found by trying all that is possible."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[Entry] = []
        self.images: dict[str, list[Image]] = {}
        self.freed: list[str] = []
        self.clock = 0

    @property
    def num_free(self) -> int:
        return self.capacity - sum(entry.size for entry in self.entries if entry.owners)

    def overlapped(self, request_id: str, start: int, count: int) -> list[Image]:
        tokens = set(range(start, start + count))
        return [image for image in self.images[request_id] if tokens & set(range(image[1], sum(image[1:])))]

    def fit(self, request_id: str, start: int, count: int) -> int:
        owned = {entry.mm_hash: entry.size for entry in self.entries if entry.owners}
        for fewer in range(count, 0, -1):
            read = {mm_hash: size for mm_hash, _, size in self.overlapped(request_id, start, fewer)}
            if sum((owned | read).values()) <= self.capacity:
                return fewer
        return 0

    def take(self, request_id: str, start: int, count: int) -> list[str]:
        read = self.overlapped(request_id, start, count)
        known = {entry.mm_hash for entry in self.entries}
        new = list(dict.fromkeys(image[0] for image in read if image[0] not in known))
        self.entries += [Entry(mm_hash, next(i[2] for i in read if i[0] == mm_hash)) for mm_hash in new]
        for mm_hash, offset, _ in read:
            self.entry(mm_hash).owners.add((request_id, offset))
        while sum(entry.size for entry in self.entries) > self.capacity:
            oldest = min((entry for entry in self.entries if not entry.owners), key=lambda entry: entry.since)
            self.entries.remove(oldest)
            self.freed.append(oldest.mm_hash)
        return new

    def entry(self, mm_hash: str) -> Entry:
        return next(entry for entry in self.entries if entry.mm_hash == mm_hash)

    def computed(self, request_id: str, num_computed: float) -> None:
        for mm_hash, offset, size in self.images.get(request_id, []):
            for entry in self.entries:
                owner = (request_id, offset)
                if entry.mm_hash == mm_hash and owner in entry.owners and offset + size <= num_computed:
                    entry.owners.discard(owner)
                    self.clock += 1
                    entry.since = self.clock

    def remove(self, request_id: str) -> None:
        self.computed(request_id, float("inf"))
        self.images.pop(request_id, None)

    def dropped(self) -> list[str]:
        known = {entry.mm_hash for entry in self.entries}
        found = [name for name in dict.fromkeys(self.freed[::-1]) if name not in known][::-1]
        self.freed = []
        return found


class Entry:
    """A content in the cache: its owners, and when it lost the last of them."""

    def __init__(self, mm_hash: str, size: int) -> None:
        self.mm_hash, self.size = mm_hash, size
        self.owners: set[tuple[str, int]] = set()
        self.since = 0


def replay(learner: Learner, ops: Sequence[Op], capacity: int) -> None:
    """Give the calls to the learner's cache; raise Failed at the first answer that differs from the book's."""
    yours, book = learner.new("EncoderCache", capacity), Book(capacity)
    said = [f"EncoderCache({capacity})"]
    at: dict[str, int] = {}
    in_step: list[str] = []

    def ask(name: str, *args: Any) -> Any:
        shown = f"{name}({', '.join(map(repr, args))})"
        answer, right = getattr(yours, name)(*args), getattr(book, name)(*args)
        said.append(shown if right is None else f"{shown} -> {right}")
        if right is not None and (answer != right or type(answer) is not type(right)):
            said[-1] = shown
            raise Failed(f"{name} returned {answer!r}; by the rules it is {right!r}", example="; ".join(said))
        return right

    for kind, *rest in ops:
        if kind == "add" and rest[0] not in at:
            name, images, start = rest
            said.append(
                f"add({name!r}, {images})" + f" (its first {start} tokens are computed)" * (start > 0)
            )
            yours.add(name, images)
            book.images[name], at[name] = images, start
        elif kind == "row" and rest[0] in at and rest[0] not in in_step:
            name, count = rest
            if fitting := ask("fit", name, at[name], count):
                ask("take", name, at[name], fitting)
                at[name] += fitting
                in_step.append(name)
        elif kind == "remove":
            ask("remove", *rest)
            at.pop(rest[0], None)
        elif kind == "end":
            for name in in_step:
                ask("computed", name, at.get(name, 10**6))
            in_step = []
            ask("dropped")
        if (free := yours.get("num_free")) != book.num_free:
            raise Failed(f"num_free is {free!r}; by the rules it is {book.num_free}", example="; ".join(said))


def expect(learner: Learner, ops: list[Op], capacity: int) -> None:
    """Fail with the fewest calls that still go wrong."""
    run_fewest(
        ops,
        lambda some: replay(learner, some, capacity),
        tries=40,
        shown=lambda some: f"EncoderCache({capacity}); {some}",
    )


END: Op = ("end",)


def add(name: str, *images: Image, start: int = 0) -> Op:
    return ("add", name, list(images), start)


def read(name: str, *images: Image) -> list[Op]:
    """Return a request that computes all its images in a step of its own and ends."""
    return [add(name, *images), ("row", name, 100), END, ("remove", name)]


A, B, C, D = (("ABCD"[number], 0, 4) for number in range(4))


# -- single rules


@check(LAB)
def a_content_is_encoded_once(learner: Learner) -> None:
    """A content is encoded by the first row that reads it; later rows, of the same step or another, find it."""
    expect(learner, [add("r", A), add("s", A), ("row", "r", 6), ("row", "s", 6), END], 8)
    expect(learner, [*read("r", A), *read("s", A), *read("t", ("A", 5, 4), ("B", 9, 4))], 8)


@check(LAB)
def an_image_owns_until_it_is_computed(learner: Learner) -> None:
    """An image owns its entry from the first chunk that overlaps it until its last token is computed."""
    for first in (2, 3, 4, 6, 7, 8):
        expect(learner, [add("r", ("A", 3, 4)), ("row", "r", first), END, ("row", "r", 9), END], 4)
    cut = [add("r", ("A", 3, 4)), ("row", "r", 5), END, *read("s", B)]
    expect(learner, [*cut, ("row", "r", 1), END, *read("t", B), ("row", "r", 9), END, *read("u", B)], 4)


@check(LAB)
def a_chunk_ends_before_what_does_not_fit(learner: Learner) -> None:
    """`fit` ends a chunk before the first image without room; entries without owners are room."""
    expect(learner, [add("r", ("A", 3, 4), ("B", 9, 4)), ("row", "r", 14), END, ("row", "r", 5), END], 4)
    expect(learner, [*read("q", D), add("r", ("A", 1, 3), ("B", 4, 3), ("C", 7, 1)), ("row", "r", 9), END], 6)
    expect(learner, [add("r", A), ("row", "r", 2), END, add("s", ("B", 2, 3)), ("row", "s", 9), END], 6)


@check(LAB)
def it_waits_at_an_image(learner: Learner) -> None:
    """`fit` returns 0 where not one token fits: at the start of an image without room, or inside it."""
    held = [add("r", A), ("row", "r", 2), END]
    for start in (3, 4, 6, 7):
        expect(learner, [*held, add("s", ("B", 3, 4), start=start), ("row", "s", 5), END], 6)


@check(LAB)
def each_content_counts_once(learner: Learner) -> None:
    """`fit` counts a content once: also if another request owns it, or a chunk reads it twice."""
    expect(learner, [add("r", A, ("A", 4, 4), ("B", 9, 4)), ("row", "r", 20), END], 8)
    expect(
        learner, [add("r", A), ("row", "r", 2), END, add("s", ("A", 1, 4), ("B", 5, 4)), ("row", "s", 9)], 8
    )
    expect(learner, [*read("q", A), add("r", ("B", 0, 4), ("A", 4, 4)), ("row", "r", 9), END], 4)


@check(LAB)
def the_longest_without_owner_is_evicted(learner: Learner) -> None:
    """Evicted is the entry that has been without an owner for the longest time, and no more than must be."""
    expect(learner, [*read("q", A), *read("r", B), *read("s", C), *read("t", D), *read("u", B)], 12)
    expect(learner, [*read("q", A), *read("r", B), *read("s", A), *read("t", C)], 8)
    expect(learner, [*read("q", ("A", 0, 1), ("B", 2, 2)), *read("r", C), *read("s", ("D", 0, 3))], 7)
    early = [add("r", A), ("row", "r", 2), END, *read("s", B), ("row", "r", 2), END]
    expect(learner, [*early, *read("t", C), *read("u", A)], 8)


@check(LAB)
def in_order_of_position(learner: Learner) -> None:
    """Images that end in one chunk become evictable in order of position; a row's new hashes have that order too."""
    several = [("C", 0, 2), ("A", 2, 2), ("B", 4, 2)]
    expect(learner, [*read("r", *several), *read("s", D), *read("t", ("E", 0, 2))], 6)
    expect(learner, [add("r", *several), ("row", "r", 9), ("remove", "r"), END, *read("s", D)], 6)


@check(LAB)
def a_look_is_no_use(learner: Learner) -> None:
    """`fit` changes nothing: neither owners nor entries nor the order of eviction."""
    yours = learner.new("EncoderCache", 8)
    for name, image in (("q", A), ("r", B)):
        yours.add(name, [image])
        yours.take(name, 0, 4)
        yours.remove(name)
    yours.add("s", [A, ("C", 4, 4)])
    said = ["A and B are cached, without owners, in 8 embeddings; add('s', [A at 0, C at 4])"]
    for count in (2, 8):
        yours.fit("s", 0, count)
        said.append(f"fit('s', 0, {count})")
        if (free := yours.get("num_free")) != 8 or yours.dropped():
            raise Failed(
                f"num_free is {free!r} and hashes were dropped after a look", example="; ".join(said)
            )
    yours.add("t", [D])
    new, gone = yours.take("t", 0, 4), yours.dropped()
    if (new, gone) != (["D"], ["A"]):
        said.append("add('t', [D at 0]); take('t', 0, 4); dropped()")
        raise Failed(f"D evicts {gone!r}; by the rules it evicts ['A']", example="; ".join(said))


@check(LAB)
def a_row_keeps_what_it_reads(learner: Learner) -> None:
    """A row does not evict a cached content that it reads itself, wherever the new image stands."""
    for order in (("C", "A"), ("A", "C"), ("C", "B"), ("B", "C", "A")):
        images = [(name, 4 * place, 4) for place, name in enumerate(order)]
        expect(learner, [*read("q", A), *read("r", B), add("s", *images), ("row", "s", 20), END], 8)


@check(LAB)
def twice_in_one_prompt(learner: Learner) -> None:
    """If a prompt shows a content twice, each place owns the entry: the second keeps it when the first is computed."""
    twice = add("r", ("A", 0, 4), ("A", 5, 4))
    for first in (4, 5, 6, 9):
        expect(learner, [twice, ("row", "r", first), END, *read("s", B), ("row", "r", 9), END], 4)
    expect(learner, [twice, ("row", "r", 7), ("remove", "r"), END, *read("s", B)], 4)


@check(LAB)
def the_worker_is_told_once(learner: Learner) -> None:
    """`dropped` returns each evicted hash once, and none that was created again before the call."""
    expect(learner, [*read("q", A), *read("r", B), END, END], 4)
    again = [add("r", B), add("s", A), ("row", "r", 4), ("remove", "r"), ("row", "s", 4), END]
    expect(learner, [*read("q", A), *again, *read("t", C)], 4)
    expect(learner, [*read("q", A), *again[:-1], ("remove", "s"), add("t", B), ("row", "t", 4), END, END], 4)


@check(LAB)
def a_removed_request_owns_nothing(learner: Learner) -> None:
    """A request that ends or is preempted, even within an image, owns nothing; it may come again from position 0."""
    cut = [add("r", ("A", 1, 4), ("B", 6, 4)), ("row", "r", 3), END, ("remove", "r")]
    expect(learner, [*cut, *read("s", B), add("r", ("A", 1, 4)), ("row", "r", 9), END], 4)
    shared = [add("r", A), add("s", A), ("row", "r", 2), ("row", "s", 3), END, ("remove", "r")]
    expect(learner, [*shared, add("t", B), ("row", "t", 4), END, ("remove", "s"), ("row", "t", 4), END], 4)
    expect(learner, [add("r", A), ("row", "r", 2), ("remove", "r"), END, ("remove", "r"), *read("s", B)], 4)


@check(LAB)
def wrong_calls_are_refused(learner: Learner) -> None:
    """An id twice, an image above the capacity, an unknown id, and a chunk that does not fit raise ValueError."""
    yours = learner.new("EncoderCache", 6)
    yours.add("r", [A, ("B", 4, 4)])
    yours.take("r", 0, 2)
    said = "EncoderCache(6); add('r', [A at 0, B at 4], 4 embeddings each); take('r', 0, 2)"
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("add('r', [])", partial(yours.add, "r", [])),
        ("add('s', [A, a large one])", partial(yours.add, "s", [A, ("L", 4, 7)])),
        ("fit('s', 0, 1)", partial(yours.fit, "s", 0, 1)),
        ("take('s', 0, 1)", partial(yours.take, "s", 0, 1)),
        ("take('r', 2, 3)", partial(yours.take, "r", 2, 3)),
    ]
    for shown, call in calls:
        refused(f"{said}; {shown}", call)
    if (found := (yours.get("num_free"), yours.fit("r", 2, 9), yours.dropped())) != (2, 2, []):
        words = f"num_free, fit('r', 2, 9) and dropped() are {found!r}; they were (2, 2, [])"
        raise Failed(f"a refused call has changed the cache: {words}", example=said)


@check(LAB)
def num_free_needs_no_sum(learner: Learner) -> None:
    """num_free is O(1): its work is the same for 16 entries with owners and for 1,024."""

    def work_at(count: int) -> list[int]:
        cache = learner.new("EncoderCache", 8 * count)
        calls = [
            call
            for at in range(count)
            for call in (("add", f"r{at}", [[f"h{at}", 0, 4]]), ("take", f"r{at}", 0, 4))
        ]
        return learner.costs(cache, [*calls, *[("num_free",)] * 3], 3)

    constant(work_at, "num_free: O(1)", "entries with owners", (16, 1_024))


@check(LAB)
def random_requests(learner: Learner) -> None:
    """20 random workloads, with chunks that cut images, shared contents and preemptions, agree with the book."""
    for seed in range(20):
        rng = Random(seed)
        sizes = {name: rng.choice([1, 2, 3, 4]) for name in "ABC"}
        ops: list[Op] = []
        for number in range(8):
            images, offset = [], 0
            for name in rng.choices("ABC", k=rng.randint(0, 4)):
                offset += rng.choice([0, 0, 1, 3])
                images.append((name, offset, sizes[name]))
                offset += sizes[name]
            ops.append(add(f"r{number}", *images, start=rng.choice([0, 0, 0, 2])))
            for _ in range(rng.randint(2, 8)):
                name = f"r{rng.randint(max(0, number - 3), number)}"
                ops.append(rng.choice([("row", name, rng.randint(1, 9))] * 4 + [END, END, ("remove", name)]))
        expect(learner, [*ops, END], rng.choice([4, 5, 7]))


# -- the engine


class LabEncoderCache(EncoderCache):
    """The engine's resource with the learner's decisions: which hashes a row encodes, which ones the worker drops."""

    def __init__(self, capacity: int, yours: Any) -> None:
        super().__init__(capacity)
        self.yours = yours
        self.known: set[str] = set()
        self.encodes: dict[str, list[str]] = {}
        """Hashes that this step's rows encode, by request."""

    def fit(self, request: Request, start: int, count: int) -> int:
        if request.request_id not in self.known:
            self.known.add(request.request_id)
            images = [(each.mm_hash, each.offset, each.num_tokens) for each in request.mm_features]
            self.yours.add(request.request_id, images)
        fitting = self.yours.fit(request.request_id, start, count)
        if type(fitting) is not int or not 0 <= fitting <= count:
            raise Failed(f"fit({request.request_id!r}, {start}, {count}) returned {fitting!r}")
        return fitting

    def take(self, request: Request, count: int) -> None:
        name = request.request_id
        self.encodes[name] = self.yours.take(name, request.num_computed_tokens, count)

    def release(self, request: Request) -> None:
        super().release(request)
        self.finish(request)

    def finish(self, request: Request) -> None:
        if request.request_id in self.known:
            self.known.remove(request.request_id)
            self.yours.remove(request.request_id)

    def close_step(self, out: SchedulerOutput, stats: StepStats) -> None:
        for row in out.scheduled:
            if (request := self._readers.get(row.request_id)) is not None:
                features = {feature.mm_hash: feature for feature in request.mm_features}
                row.encoder_inputs = [features[name] for name in self.encodes.pop(row.request_id, [])]
        out.dropped_encoder_hashes = self.yours.dropped()

    def end_step(self, result: ModelRunnerOutput, stats: StepStats) -> tuple[()]:
        for request in self._readers.values():
            self.yours.computed(request.request_id, request.num_computed_tokens)
        return ()


class LabScheduler(Scheduler):
    """The engine's scheduler, whose chunks end where the learner's cache says."""

    learner: Learner | None = None
    """Source of the class; the engine makes this scheduler by its name."""

    def __init__(self, config: SchedulerConfig, cache_config: CacheConfig, **options: Any) -> None:
        super().__init__(config, cache_config, **options)
        assert LabScheduler.learner is not None
        self.images = LabEncoderCache(ROOM, LabScheduler.learner.new("EncoderCache", ROOM))
        others = [each for each in self.resources if not isinstance(each, EncoderCache)]
        self.resources = [*others, self.images]
        self.num_idle = 0
        """Steps without a row since the last one with rows."""

    def schedule(self) -> SchedulerOutput:
        out = super().schedule()
        self.num_idle = 0 if out.scheduled else self.num_idle + 1
        if self.running and self.num_idle > MAX_IDLE:
            waits = ", ".join(f"{each.request_id} at {each.num_computed_tokens}" for each in self.running)
            raise Failed(f"for {MAX_IDLE} steps no request computes a token; they wait at: {waits}")
        return out

    def _num_new_tokens(self, request: Request, start: int, plan: StepPlan) -> int:
        count = super()._num_new_tokens(request, start, plan)
        return self.images.fit(request, start, count) if request.mm_features else count

    def _add_row(
        self,
        plan: StepPlan,
        request: Request,
        num_tokens: int,
        new_block_ids: list[int],
        is_new: bool = False,
    ) -> None:
        if not num_tokens and is_new:
            raise Failed(f"fit returned 0 for the text at the beginning of {request.request_id}")
        if not num_tokens:
            return  # it waits for room
        if request.mm_features:
            self.images.take(request, num_tokens)
        super()._add_row(plan, request, num_tokens, new_block_ids, is_new)


class Peak(StepObserver):
    """The most embeddings that the worker held at the end of a step."""

    def __init__(self, worker: Any) -> None:
        self.images = worker.runner._images
        self.most = 0

    def step(self, *_step: object) -> None:
        held = sum(len(embeddings) for embeddings in self.images._encoded.values())
        self.most = max(self.most, held)


class Served(NamedTuple):
    token_ids: list[list[int]]
    num_encoded: int
    """Runs of the encoder."""
    most: int
    """Embeddings in the worker."""


SEEN = ("ab", "cd", "aa", "b", "dc", "ba", "e", "ea")
"""The images in each of eight prompts, by a letter."""
MAX_IDLE = 8
ROOM = 32
"""Embeddings that fit: two of the engine's images."""


def answers(**settings: Any) -> Served:
    """Serve eight prompts with images, several at once, with small chunks."""
    import numpy as np

    from engine.llm import LLM
    from engine.sampling_params import SamplingParams
    from lessons.mine.identity import quiet_engine

    with LLM(
        "shop",
        limit_mm_per_prompt={"image": 2},
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        enable_prefix_caching=False,
        num_gpu_blocks_override=14,
        debug_checks=True,
        **settings,
    ) as llm:
        core: Any = llm.llm_engine.engine_core
        peak = Peak(core.executor.worker)
        core.observers.append(peak)
        prompts: list[Any] = []
        for letters in SEEN:
            drawn = [np.random.default_rng(ord(each)) for each in letters]
            images = [rng.integers(0, 256, (40, 30, 3), dtype=np.uint8) for rng in drawn]
            text = "Which one is it: " + " or ".join(["<image>"] * len(images)) + "?"
            prompts.append({"prompt": text, "multi_modal_data": {"image": images}})
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        with quiet_engine():
            outputs = llm.generate(prompts, params, use_tqdm=False)
        found = [list(each.outputs[0].token_ids) for each in outputs]
        return Served(found, peak.images._encoder.num_runs, peak.most)


@cache
def ours() -> Served:
    return answers()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, and so on: the engine's own error may hide the learner's."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@check(LAB)
def the_engine_reads_from_it(learner: Learner) -> None:
    """The engine serves eight prompts with images: the same tokens, and never more than the capacity in the worker."""
    from engine.core.errors import EngineDeadError

    LabScheduler.learner = learner
    try:
        yours = answers(scheduler_cls=f"{__name__}:LabScheduler")
    except (EngineDeadError, LookupError) as error:
        causes = list(_causes(error))
        for cause in causes:
            if isinstance(cause, (Failed, GuestError, GuestStopped)):
                raise cause from None
        if isinstance(causes[-1], KeyError):
            raise Failed(
                "a row reads an image that the worker does not hold: dropped, or not encoded"
            ) from None
        raise Failed(f"the engine stopped: {causes[-1]}") from None
    finally:
        LabScheduler.learner = None
    example = f"eight prompts, images by letter: {', '.join(SEEN)}; {ROOM} embeddings, 16 per image"
    if yours.most > ROOM:
        raise Failed(f"the worker held {yours.most} embeddings; {ROOM} fit", example=example)
    for place, (mine, theirs) in enumerate(zip(yours.token_ids, ours().token_ids, strict=True)):
        if mine != theirs:
            words = f"prompt {place} gets the tokens {mine}; with the engine's cache it gets {theirs}"
            raise Failed(words, example=example)
