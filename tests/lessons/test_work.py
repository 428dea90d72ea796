"""The work of a call in a learner's process: O(n) shows, in Python and in C; O(1) does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lessons.course.checking import Failed, Learner, constant
from prep_common.sandbox import Guest

CODE = """
import heapq


class Box:
    def __init__(self):
        self.flags, self.ids, self.heap, self.text = [], {}, [], b""

    def put(self, name):
        self.flags.append(0)
        self.ids[name] = len(self.ids)
        self.text += b"x"
        heapq.heappush(self.heap, name)

    def size(self):
        return len(self.ids)

    def find(self, name):
        return self.ids[name]

    def loops(self, name):
        return [each for each in self.ids if each == name]

    def adds_up(self, name):
        return sum(self.flags)

    def counts(self, name):
        return self.flags.count(1)

    def compares(self, name):
        return name in self.heap

    def takes_the_least(self, name):
        return min(self.ids)

    def copies(self, name):
        return len(list(self.flags))

    def hashes_all(self, name):
        return len(set(self.ids) - {name})

    def searches_bytes(self, name):
        return self.text.rfind(b"y")
"""
LINEAR = (
    "loops", "adds_up", "counts", "compares", "takes_the_least", "copies", "hashes_all", "searches_bytes"
)  # fmt: skip


@pytest.fixture(scope="module")
def learner() -> Iterator[Learner]:
    with Guest({"learner.py": CODE}) as guest:
        yield Learner(guest)


def work_of(learner: Learner, name: str, count: int) -> list[int]:
    puts = [("put", f"r{at}") for at in range(count)]
    return learner.costs(
        learner.new("Box"), [*puts, *[(name, "absent") if name != "size" else (name,)] * 3], 3
    )


@pytest.mark.parametrize("name", LINEAR)
def test_work_that_grows_with_the_object_is_counted(learner: Learner, name: str) -> None:
    with pytest.raises(Failed, match="O\\(1\\).*the work grows from"):
        constant(lambda count: work_of(learner, name, count), "O(1)", "entries", (64, 2_048))


def test_work_that_stays_the_same_passes(learner: Learner) -> None:
    constant(lambda count: work_of(learner, "size", count), "O(1)", "entries", (64, 2_048))
    found = [
        learner.costs(
            learner.new("Box"), [*[("put", f"r{at}") for at in range(count)], *[("find", "r7")] * 3], 3
        )
        for count in (64, 2_048)
    ]
    few, many = map(min, found)
    assert many < 2 * few, (
        "a look into a dict counts its comparisons, a few more if hashes collide, and not its size"
    )
