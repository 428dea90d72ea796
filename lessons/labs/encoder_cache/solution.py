"""Lab encoder-cache: keep the encoder's outputs within a budget, and end a chunk before an image that has no room.

The seam is the encoder cache (engine/core/encoder_cache.py). An image stands in a prompt as a run of placeholder
tokens. A step that computes some of them reads the image's embeddings, which an encoder computes once per content. The
cache holds at most `capacity` embeddings. If the images of a chunk do not fit, the scheduler computes a shorter chunk.

    prompt      t t t A A A A t t B B B B t      images: [("A", 3, 4), ("B", 9, 4)]      EncoderCache(4)
    step 0      fit("r", 0, 14) -> 9             the chunk ends before B, which would need 8 embeddings
                take("r", 0, 9) -> ["A"]         encode A in this step
                computed("r", 9)                 no request needs A now; it stays cached
    step 1      fit("r", 9, 5) -> 5
                take("r", 9, 5) -> ["B"]         encode B, which evicts A
                dropped() -> ["A"]               the worker frees A's embeddings

An image is one run of placeholders in one request; equal hashes mean equal content and size. An entry is a content in
the cache. Its owners are the images that read it: an image becomes an owner with the first chunk that overlaps it, and
stops when its last token is computed or its request is removed. Entries without owners stay until room is needed; those
with owners are never evicted. Sources: vLLM v1/core/encoder_cache_manager.py; v1/core/sched/scheduler.py,
_try_schedule_encoder_inputs.
"""

from __future__ import annotations

from collections import OrderedDict

Image = tuple[str, int, int]
"""Hash of the content, position of the first placeholder, number of placeholders (= embeddings)."""


class EncoderCache:
    """Entries, their owners and the order of eviction. The worker holds the embeddings."""

    def __init__(self, capacity: int) -> None:
        """Start empty. capacity: embeddings that fit."""
        self.capacity = capacity
        self.images: dict[str, list[Image]] = {}
        self.size: dict[str, int] = {}
        """Entries, with the embeddings of each."""
        self.owners: dict[str, set[tuple[str, int]]] = {}
        """(request, position) of the images that read an entry; no key without owners."""
        self.idle: OrderedDict[str, None] = OrderedDict()
        """Entries without owners, in the order of eviction."""
        self.evicted: dict[str, None] = {}
        """Hashes that `dropped` returns next."""
        self.num_cached = self.num_owned = 0
        """Embeddings of all entries, and of those with owners."""

    @property
    def num_free(self) -> int:
        """Embeddings that could be cached now: `capacity` less the sizes of all entries with owners. O(1)."""
        return self.capacity - self.num_owned

    def add(self, request_id: str, images: list[Image]) -> None:
        """Register a request with its images, in order of position and without overlap.

        Raises ValueError, and changes nothing, if the id is registered or an image is larger than the capacity.
        """
        if request_id in self.images:
            raise ValueError(f"request {request_id!r} is registered")
        if any(size > self.capacity for _, _, size in images):
            raise ValueError(f"an image of {request_id!r} has more than {self.capacity} embeddings")
        self.images[request_id] = images

    def fit(self, request_id: str, start: int, count: int) -> int:
        """Return how many of the `count` tokens from position `start` on one step can compute, 0 to `count`.

        The largest number such that the images that these tokens overlap, together with all entries that have owners,
        need at most `capacity` embeddings. Each content counts once. Changes nothing, the order of eviction included.
        Raises ValueError for an unknown id, as `take` does.
        """
        room, counted = self.num_free, set()
        for mm_hash, offset, size in self._overlapped(request_id, start, count):
            if mm_hash in self.owners or mm_hash in counted:
                continue
            if size > room:
                return max(0, offset - start)
            room -= size
            counted.add(mm_hash)
        return count

    def take(self, request_id: str, start: int, count: int) -> list[str]:
        """Let the images that these tokens overlap own their entries: a row of this step computes the tokens.

        Images whose content is cached become owners first, so that the row does not evict what it reads. Then the
        missing entries are created; as long as all entries together exceed the capacity, the one that has been without
        an owner for the longest time is evicted. Returns the created hashes in order of position: the row encodes them.
        Rows that follow in the same step find them. Raises ValueError, and changes nothing, if `fit` returns less than
        `count`.
        """
        if self.fit(request_id, start, count) < count:
            raise ValueError(f"the images of {count} tokens from {start} on do not fit")
        created: dict[str, int] = {}
        for mm_hash, offset, size in self._overlapped(request_id, start, count):
            if mm_hash not in self.owners:
                self.owners[mm_hash] = set()
                self.num_owned += size
            if mm_hash not in self.size:
                created[mm_hash] = size
            self.idle.pop(mm_hash, None)
            self.owners[mm_hash].add((request_id, offset))
        while self.num_cached + sum(created.values()) > self.capacity:
            mm_hash, _ = self.idle.popitem(last=False)
            self.num_cached -= self.size.pop(mm_hash)
            self.evicted[mm_hash] = None
        for mm_hash, size in created.items():
            self.size[mm_hash] = size
            self.num_cached += size
            self.evicted.pop(mm_hash, None)
        return list(created)

    def computed(self, request_id: str, num_computed: int) -> None:
        """Release the images among the first `num_computed` tokens, which are computed: they own nothing from now on.

        An entry that loses its last owner becomes the last in the order of eviction; of several, in order of position.
        No effect for an unknown id: the request was removed while its step ran.
        """
        for mm_hash, offset, size in self.images.get(request_id, []):
            if offset + size <= num_computed:
                self._let_go(request_id, mm_hash, offset)

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended or is preempted; its images own nothing from now on.

        Entries become evictable in order of position, as in `computed`. No effect for an unknown id. The id may be
        registered again.
        """
        for mm_hash, offset, _ in self.images.pop(request_id, []):
            self._let_go(request_id, mm_hash, offset)

    def dropped(self) -> list[str]:
        """Return the hashes evicted since the last call, in that order, each once: the worker frees them.

        Without those that were created again since then: the worker needs them.
        """
        found, self.evicted = list(self.evicted), {}
        return found

    def _overlapped(self, request_id: str, start: int, count: int) -> list[Image]:
        if request_id not in self.images:
            raise ValueError(f"request {request_id!r} is not registered")
        end = start + count
        return [image for image in self.images[request_id] if image[1] < end and start < image[1] + image[2]]

    def _let_go(self, request_id: str, mm_hash: str, offset: int) -> None:
        owners = self.owners.get(mm_hash, set())
        if (request_id, offset) in owners:
            owners.remove((request_id, offset))
            if not owners:
                del self.owners[mm_hash]
                self.num_owned -= self.size[mm_hash]
                self.idle[mm_hash] = None
