"""Checks of lesson 15."""

from __future__ import annotations

import json
import math
from random import Random

from lessons.course.checking import Failed, Learner, check, smallest

Step = tuple[str, str]


class Oracle:
    """Admission by one list: the first max_running of it run."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_running, self.capacity = max_running, max_running + max_waiting
        self.here: list[str] = []

    def offer(self, name: str) -> str:
        if len(self.here) == self.capacity:
            return "reject"
        self.here.append(name)
        return "run" if len(self.here) <= self.max_running else "wait"

    def leave(self, name: str) -> str | None:
        if name not in self.here:
            return None
        ran = self.here.index(name) < self.max_running
        following = self.here[self.max_running] if ran and len(self.here) > self.max_running else None
        self.here.remove(name)
        return following


def play(learner: Learner, limits: tuple[int, int], steps: list[Step]) -> None:
    """Run the same steps on both and compare every answer and both counts."""
    mine, oracle = learner.new("AdmissionControl", *limits), Oracle(*limits)
    done: list[str] = []
    for action, name in steps:
        done.append(f'{action}("{name}")')
        expected = oracle.offer(name) if action == "offer" else oracle.leave(name)
        found = mine.call(action, name)
        example = f"AdmissionControl{limits}: {'; '.join(done)}"
        if found != expected:
            raise Failed(f"{done[-1]} returned {found!r}, expected {expected!r}", example=example)
        counts = (mine.get("num_running"), mine.get("num_waiting"))
        running = min(len(oracle.here), oracle.max_running)
        if counts != (running, len(oracle.here) - running):
            raise Failed(
                f"num_running, num_waiting are {counts}, expected {(running, len(oracle.here) - running)}",
                example=example,
            )


def offers(names: str) -> list[Step]:
    return [("offer", name) for name in names]


@check("15.1")
def limits_are_kept(learner: Learner) -> None:
    """max_running requests run, max_waiting wait, the next is rejected and leaves no trace."""
    for limits in ((1, 0), (1, 1), (2, 1), (2, 3)):
        play(learner, limits, [*offers("abcdefg"), ("finish", "a"), *offers("hi")])


@check("15.1")
def slots_go_to_the_first_in_line(learner: Learner) -> None:
    """A freed slot goes to the request that has waited longest, and finish names it."""
    play(
        learner, (1, 3), [*offers("abcd"), ("finish", "a"), ("finish", "b"), ("finish", "c"), ("finish", "d")]
    )


@check("15.1")
def aborts_free_what_was_held(learner: Learner) -> None:
    """abort frees a slot as finish does, or a place in the queue; for an unknown id it does nothing."""
    play(learner, (1, 2), [*offers("abc"), ("abort", "a"), ("abort", "c"), ("abort", "x"), *offers("de")])
    play(learner, (2, 2), [*offers("abcd"), ("abort", "c"), ("abort", "a"), ("abort", "a"), ("finish", "b")])


@check("15.1")
def ids_are_unique(learner: Learner) -> None:
    """An id that runs or waits cannot be offered again; one that has ended can."""
    for steps in (offers("a"), offers("ab")):
        mine = learner.new("AdmissionControl", 1, 1)
        for _, name in steps:
            mine.call("offer", name)
        expect_value_error(mine, "offer", steps[-1][1])
    play(learner, (1, 1), [*offers("a"), ("finish", "a"), *offers("a")])


@check("15.1")
def only_running_requests_finish(learner: Learner) -> None:
    """finish raises ValueError for a request that waits or is unknown, and changes nothing."""
    for name in "bx":
        mine = learner.new("AdmissionControl", 1, 1)
        mine.call("offer", "a"), mine.call("offer", "b")
        expect_value_error(mine, "finish", name)
        if (mine.get("num_running"), mine.get("num_waiting")) != (1, 1):
            raise Failed(f'finish("{name}") changed the counts', example="a runs, b waits")


def expect_value_error(mine, action: str, name: str) -> None:
    try:
        mine.call(action, name)
    except Exception as error:
        if "ValueError" not in str(error):
            raise Failed(f'{action}("{name}") raised {error}, expected ValueError') from None
    else:
        raise Failed(f'{action}("{name}") was accepted, expected ValueError')


@check("15.1")
def nothing_leaks(learner: Learner) -> None:
    """Random offers, finishes and aborts agree with a model, and after the last one has left none runs or waits."""
    rng = Random(15)
    for _ in range(12):
        limits = (rng.randint(1, 4), rng.randint(0, 4))
        oracle, steps = Oracle(*limits), []
        for number in range(40):
            running, here = oracle.here[: limits[0]], list(oracle.here)
            if here and rng.random() < 0.45:
                action = "finish" if rng.random() < 0.5 and running else "abort"
                name = rng.choice(running if action == "finish" else here)
                oracle.leave(name)
            else:
                action, name = "offer", f"r{number}"
                oracle.offer(name)
            steps.append((action, name))
        steps += [("abort", name) for name in oracle.here]
        play(learner, limits, steps)


def rank_percentile(values: list[float], percent: float) -> float:
    """Share of the way through the sorted values, walked step by step."""
    ordered, place = sorted(values), (len(values) - 1) * percent / 100
    below = math.floor(place)
    return ordered[below] + (place - below) * (ordered[math.ceil(place)] - ordered[below])


@check("15.2")
def percentiles_interpolate(learner: Learner) -> None:
    """A percentile between two values lies between them, in proportion; values come in any order."""
    rng = Random(2)
    cases = [
        ([1.0], 99.0),
        ([1.0, 3.0], 50.0),
        ([3.0, 1.0, 2.0], 75.0),
        ([4.0, 1.0], 0.0),
        ([4.0, 1.0], 100.0),
    ]
    cases += [
        ([rng.random() for _ in range(rng.randint(2, 30))], rng.choice([10.0, 50.0, 90.0, 99.0]))
        for _ in range(50)
    ]

    def run(case: tuple[list[float], float]) -> None:
        found = learner.call("percentile", *case)
        if not math.isclose(found, rank_percentile(*case), rel_tol=1e-9):
            raise Failed(f"returned {found}, expected {rank_percentile(*case)}")

    smallest(cases, run)


@check("15.2")
def infinite_times_have_percentiles(learner: Learner) -> None:
    """Requests without an answer have infinite times: a percentile among them is infinite, never NaN."""
    for values, percent, expected in (
        ([1.0, math.inf, math.inf], 75.0, math.inf),
        ([1.0, math.inf], 0.0, 1.0),
    ):
        found = learner.call("percentile", values, percent)
        if found != expected:
            raise Failed(f"returned {found}, expected {expected}", example=f"percentile({values}, {percent})")


@check("15.2")
def no_values_no_percentile(learner: Learner) -> None:
    """percentile raises ValueError for an empty list."""
    try:
        learner.call("percentile", [], 99)
    except Exception as error:
        if "ValueError" not in str(error):
            raise Failed(f"raised {error}, expected ValueError", example="percentile([], 99)") from None
    else:
        raise Failed("was accepted, expected ValueError", example="percentile([], 99)")


Times = tuple[float, float, float, int]
GOOD: Times = (0.0, 0.5, 1.5, 11)


def goodput_is(learner: Learner, cases: list[tuple[list[Times], int]], seconds: float = 4.0) -> None:
    def run(case: tuple[list[Times], int]) -> None:
        records, expected = case
        found = learner.call("goodput", records, 0.5, 0.1, seconds)
        if not math.isclose(found, expected / seconds):
            raise Failed(f"returned {found}, expected {expected} / {seconds:g} = {expected / seconds}")

    smallest(cases, run)


@check("15.2")
def both_objectives_count(learner: Learner) -> None:
    """A request is good if its TTFT and its TPOT are within the limits (0.5 s and 0.1 s here)."""
    slow_start, slow_tokens = (0.0, 0.6, 1.6, 11), (0.0, 0.5, 1.6, 11)
    goodput_is(learner, [([GOOD], 1), ([slow_start], 0), ([slow_tokens], 0), ([GOOD, slow_start, GOOD], 2)])


@check("15.2")
def ttft_counts_from_the_arrival(learner: Learner) -> None:
    """TTFT is first token minus arrival, and TPOT divides by the tokens after the first."""
    goodput_is(
        learner,
        [([(10.0, 10.25, 11.25, 11)], 1), ([(10.0, 10.75, 11.25, 11)], 0), ([(1.0, 1.5, 1.625, 2)], 0)],
    )


@check("15.2")
def missing_answers_are_not_good(learner: Learner) -> None:
    """A request without an answer is not good; one with a single token has no TPOT to miss."""
    lost = (0.0, math.inf, math.inf, 0)
    goodput_is(
        learner, [([lost], 0), ([(0.0, 0.1, 0.1, 1)], 1), ([lost, GOOD], 1), ([(0.0, 0.0, 0.0, 0)], 0)]
    )


@check("15.3")
def events_have_the_format(learner: Learner) -> None:
    """Each event is a line `data: JSON` and an empty line; the last one is `data: [DONE]`."""

    def run(events: list[dict]) -> None:
        found = learner.call("sse", events)
        if type(found) is not bytes:
            raise Failed(f"returned a {type(found).__name__}, expected bytes")
        blocks = found.decode().split("\n\n")
        if len(blocks) != len(events) + 2 or blocks[-2:] != ["data: [DONE]", ""]:
            raise Failed(f"returned {found!r}")
        for block, event in zip(blocks, events, strict=False):
            if not block.startswith("data: ") or "\n" in block or json.loads(block[6:]) != event:
                raise Failed(f"the event became {block!r}")

    cases: list[list[dict]] = [[], [{"a": 1}], [{"text": "two\n\nlines"}, {"text": "マンガ"}]]
    smallest(cases, run)


def feeds(learner: Learner, pieces: list[bytes], expected: list[str]) -> None:
    parser = learner.new("SSEParser")
    found = [event for piece in pieces for event in parser.call("feed", piece)]
    if found != expected:
        raise Failed(f"returned {found}, expected {expected}", example=f"feed {pieces}")


@check("15.3")
def whole_events_are_read(learner: Learner) -> None:
    """Complete events are returned at once, in order; an unfinished one is not."""
    feeds(learner, [b"data: a\n\n"], ["a"])
    feeds(learner, [b"data: a\n\ndata: b\n\n", b"data: c\n"], ["a", "b"])


@check("15.3")
def cuts_do_not_matter(learner: Learner) -> None:
    """A stream gives the same events however it is cut, even inside a character or a line end."""
    stream = "data: マンガ\r\n\r\n: ping\n\ndata: x\ndata: y\n\ndata: [DONE]\n\n".encode()
    expected = ["マンガ", "x\ny", "[DONE]"]
    for cut in range(1, len(stream)):
        feeds(learner, [stream[:cut], stream[cut:]], expected)
    feeds(learner, [stream[index : index + 1] for index in range(len(stream))], expected)


@check("15.3")
def other_lines_are_ignored(learner: Learner) -> None:
    """Comments, other fields and events without data are ignored."""
    feeds(learner, [b": keep-alive\n\n", b"event: ping\n\n", b"id: 7\ndata: a\n\n", b"\n\n"], ["a"])


@check("15.3")
def data_lines_are_joined(learner: Learner) -> None:
    """Data lines of one event are joined by LF, and only one space after the colon is dropped."""
    feeds(learner, [b"data: a\ndata:b\ndata:  c\n\n"], ["a\nb\n c"])
