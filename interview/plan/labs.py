"""Labs as a kind of practice: larger programs, those that fit the role's questions best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from interview.plan.layout import Activity, Item, LeftOut, Task
from interview.plan.learner import Learner
from interview.plan.sources import last_day, values
from lessons.course.lesson_files import Lab, labs
from prep_common.text import counted


class Labs:
    """Labs in the order of their tracks; of a lab in several languages, the first one."""

    share = 0.1

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        known = values(learner, labs())
        done = {lab.folder for lab in labs() if lab.number in learner.passed}
        of_folder: dict[object, Lab] = {}
        for lab in labs():
            if lab.folder not in done and known[lab.number] > 0:
                of_folder.setdefault(lab.folder, lab)
        self._open = list(of_folder.values())
        self._value = known

    def needed(self) -> float:
        return sum(lab.exercise.minutes for lab in self._open)

    def choose(self, minutes: float) -> Activity:
        chosen: set[str] = set()
        left = minutes
        for lab in sorted(self._open, key=lambda lab: -self._value[lab.number] / lab.exercise.minutes):
            if lab.exercise.minutes <= left + 1e-9:
                chosen.add(lab.number)
                left -= lab.exercise.minutes
        items = tuple(Item(lab.number, lab.exercise.minutes) for lab in self._open if lab.number in chosen)
        return Activity("lab", items, _tasks, self._left_out(len(chosen)), until=last_day(self._learner))

    def _left_out(self, chosen: int) -> Callable[[Sequence[Item]], list[LeftOut]]:
        def left_out(unplaced: Sequence[Item]) -> list[LeftOut]:
            count = len(self._open) - chosen + len(unplaced)
            return [LeftOut("lab", counted(count, "lab"), "no time for more")] if count else []

        return left_out


def _tasks(items: Sequence[Item]) -> list[Task]:
    return [
        Task("lab", f"lab {item.id}", item.minutes, f"prep lab new {item.id}", (item.id,)) for item in items
    ]
