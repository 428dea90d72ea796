"""Reference solutions of lesson 06, one self-contained section per exercise."""

# exercise 06.1
from collections import deque


class ContinuousBatcher:
    """Serve requests in a fixed number of slots, one token per slot and step.

    A request takes a free slot before the next step, in order of arrival, and leaves it right after its last token.
    """

    def __init__(self, slots: int) -> None:
        """Start with all slots free. Raises ValueError for fewer than one slot."""
        if slots < 1:
            raise ValueError(f"{slots} slots cannot serve requests")
        self._slots = slots
        self._waiting: deque[tuple[str, int]] = deque()
        self._running: dict[str, int] = {}

    def add(self, request_id: str, num_tokens: int) -> None:
        """Queue a request for num_tokens >= 1 tokens."""
        self._waiting.append((request_id, num_tokens))

    def step(self) -> list[str]:
        """Admit, generate one token for each running request, and return the ids that finished, in order of admission.

        A step without any request returns [].
        """
        while self._waiting and len(self._running) < self._slots:
            request_id, num_tokens = self._waiting.popleft()
            self._running[request_id] = num_tokens
        finished = []
        for request_id in list(self._running):
            self._running[request_id] -= 1
            if self._running[request_id] == 0:
                del self._running[request_id]
                finished.append(request_id)
        return finished

    def running(self) -> list[str]:
        """Return the ids that hold a slot now, in order of admission."""
        return list(self._running)


# exercise 06.2
def static_steps(lens: list[int], slots: int) -> int:
    """Return the steps of static batching: groups of `slots` requests in order, each as long as its longest."""
    return sum(max(lens[start : start + slots]) for start in range(0, len(lens), slots))


def slot_use(lens: list[int], slots: int, steps: int) -> float:
    """Return the share of slot-steps that made a token, 0 to 1. No steps: 0."""
    return sum(lens) / (slots * steps) if steps else 0.0


# exercise 06.3
def bounds(lens: list[int], slots: int) -> tuple[int, int]:
    """Return (least, most) steps that continuous batching can need for these output lengths, whatever their order.

    least: the longest request, or all tokens spread evenly over the slots, whichever takes longer.
    most: Graham's bound for list scheduling, floor((total - longest) / slots) + longest. No requests: (0, 0).
    """
    if not lens:
        return 0, 0
    total, longest = sum(lens), max(lens)
    return max(longest, -(-total // slots)), (total - longest) // slots + longest
