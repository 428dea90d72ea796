"""Solution of lab encoder-cache. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections import OrderedDict

Image = tuple[str, int, int]


class EncoderCache:
    def __init__(self, capacity: int) -> None:
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
        return self.capacity - self.num_owned

    def add(self, request_id: str, images: list[Image]) -> None:
        if request_id in self.images:
            raise ValueError(f"request {request_id!r} is registered")
        if any(size > self.capacity for _, _, size in images):
            raise ValueError(f"an image of {request_id!r} has more than {self.capacity} embeddings")
        self.images[request_id] = images

    def fit(self, request_id: str, start: int, count: int) -> int:
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
        for mm_hash, offset, size in self.images.get(request_id, []):
            if offset + size <= num_computed:
                self._let_go(request_id, mm_hash, offset)

    def remove(self, request_id: str) -> None:
        for mm_hash, offset, _ in self.images.pop(request_id, []):
            self._let_go(request_id, mm_hash, offset)

    def dropped(self) -> list[str]:
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
