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

Image = tuple[str, int, int]
"""Hash of the content, position of the first placeholder, number of placeholders (= embeddings)."""


class EncoderCache:
    """Entries, their owners and the order of eviction. The worker holds the embeddings."""

    def __init__(self, capacity: int) -> None:
        """Start empty. capacity: embeddings that fit."""
        raise NotImplementedError("write EncoderCache")

    @property
    def num_free(self) -> int:
        """Embeddings that could be cached now: `capacity` less the sizes of all entries with owners. O(1)."""
        raise NotImplementedError("write num_free")

    def add(self, request_id: str, images: list[Image]) -> None:
        """Register a request with its images, in order of position and without overlap.

        Raises ValueError, and changes nothing, if the id is registered or an image is larger than the capacity.
        """
        raise NotImplementedError("write add")

    def fit(self, request_id: str, start: int, count: int) -> int:
        """Return how many of the `count` tokens from position `start` on one step can compute, 0 to `count`.

        The largest number such that the images that these tokens overlap, together with all entries that have owners,
        need at most `capacity` embeddings. Each content counts once. Changes nothing, the order of eviction included.
        Raises ValueError for an unknown id, as `take` does.
        """
        raise NotImplementedError("write fit")

    def take(self, request_id: str, start: int, count: int) -> list[str]:
        """Let the images that these tokens overlap own their entries: a row of this step computes the tokens.

        Images whose content is cached become owners first, so that the row does not evict what it reads. Then the
        missing entries are created; as long as all entries together exceed the capacity, the one that has been without
        an owner for the longest time is evicted. Returns the created hashes in order of position: the row encodes them.
        Rows that follow in the same step find them. Raises ValueError, and changes nothing, if `fit` returns less than
        `count`.
        """
        raise NotImplementedError("write take")

    def computed(self, request_id: str, num_computed: int) -> None:
        """Release the images among the first `num_computed` tokens, which are computed: they own nothing from now on.

        An entry that loses its last owner becomes the last in the order of eviction; of several, in order of position.
        No effect for an unknown id: the request was removed while its step ran.
        """
        raise NotImplementedError("write computed")

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended or is preempted; its images own nothing from now on.

        Entries become evictable in order of position, as in `computed`. No effect for an unknown id. The id may be
        registered again.
        """
        raise NotImplementedError("write remove")

    def dropped(self) -> list[str]:
        """Return the hashes evicted since the last call, in that order, each once: the worker frees them.

        Without those that were created again since then: the worker needs them.
        """
        raise NotImplementedError("write dropped")
