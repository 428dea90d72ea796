"""Reference solutions of lesson 06, one self-contained section per exercise."""

# exercise 06.1
from collections import deque


class ContinuousBatcher:
    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"{slots} slots cannot serve requests")
        self._slots = slots
        self._waiting: deque[tuple[str, int]] = deque()
        self._running: dict[str, int] = {}

    def add(self, request_id: str, num_tokens: int) -> None:
        self._waiting.append((request_id, num_tokens))

    def step(self) -> list[str]:
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
        return list(self._running)


# exercise 06.2
def static_steps(lens: list[int], slots: int) -> int:
    return sum(max(lens[start : start + slots]) for start in range(0, len(lens), slots))


def slot_use(lens: list[int], slots: int, steps: int) -> float:
    return sum(lens) / (slots * steps) if steps else 0.0


# exercise 06.3
def bounds(lens: list[int], slots: int) -> tuple[int, int]:
    if not lens:
        return 0, 0
    total, longest = sum(lens), max(lens)
    return max(longest, -(-total // slots)), (total - longest) // slots + longest
