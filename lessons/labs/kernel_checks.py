"""The checks that the kernels of all labs pass: they stay inside their arrays, do not race, and share the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from lessons.course.checking import Learner, check, smallest
from lessons.course.native import shared_work, walls, watched

Size = TypeVar("Size")


def check_accesses(
    lab: str,
    compare: Callable[[Learner, Size], None],
    *,
    cpp: Sequence[Size],
    cuda: Sequence[Size],
    triton: Sequence[Size],
    launches: Mapping[str, Callable[[Learner], None]],
) -> None:
    """Register checks of the accesses to memory, for a lab in three languages.

    compare: runs the kernel on inputs of a size; the sizes of each language come smallest first. launches: of CUDA,
    by their words in a failure; their threads must share the work.
    """

    @check(f"cpp-{lab}")
    @check(f"cuda-{lab}")
    def it_stays_inside_its_arrays(learner: Learner) -> None:
        """No number beside an array is read or written, and no memory stays allocated."""
        with walls(learner):
            smallest(cpp if learner.language == "cpp" else cuda, partial(compare, learner))

    @check(f"cuda-{lab}")
    def no_two_threads_race(learner: Learner) -> None:
        """A barrier, an exchange of the warp, or atomicAdd orders what one thread changes and another uses."""
        with watched(learner):
            smallest(cuda, partial(compare, learner))

    @check(f"cuda-{lab}")
    def the_threads_share_the_work(learner: Learner) -> None:
        """No thread of a block makes more than three times its share of the block's accesses to memory."""
        for words, launch in launches.items():
            shared_work(learner, partial(launch, learner), words)

    @check(f"triton-{lab}")
    def it_stays_inside_its_tensors(learner: Learner) -> None:
        """Every load and store is masked where it would leave its tensors, and no result depends on a hidden lane."""
        with walls(learner):
            smallest(triton, partial(compare, learner))

    @check(f"triton-{lab}")
    def the_kernels_store_the_result(learner: Learner) -> None:
        """Each number that a function returns or changes was stored by a kernel of the file, none by torch."""
        with watched(learner):
            smallest(triton, partial(compare, learner))
