"""The learner's pieces, and which code fills each seam of the engine.

exercise cells of the notebooks, files of labs --> checked? --> yours
                                                    `- no ---> ours, with the reason
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from lessons.course.lesson_files import find_lab
from lessons.course.native_guest import NotCompiled, library
from lessons.mine.errors import SOURCE
from lessons.mine.native_decode import NativeDecode


class Seam(NamedTuple):
    """A place in the engine that an exercise can fill."""

    name: str
    exercises: tuple[tuple[str, str], ...]
    """(exercise or lab, name of its object), the preferred one first."""
    ours: str
    """File of the engine's own code."""


SEAMS = (
    Seam("sampler", (("04.1", "filter_probs"),), "engine/sample/sampler.py"),
    Seam("allocator", (("07.1", "BlockAllocator"),), "engine/core/blocks.py"),
    Seam("attention", (("08.3", "paged_attention"),), "engine/attention/kernel_backends.py"),
    Seam("decode", (("cpp-paged-decode", "paged_decode"),), "kernels/cpu/attention.cpp"),
    Seam("scheduler", (("10.1", "ChunkedScheduler"), ("09.2", "Scheduler")), "engine/core/scheduler.py"),
    Seam("block_hashes", (("11.1", "block_hashes"),), "engine/core/hashing.py"),
    Seam("prefix_cache", (("11.2", "PrefixCache"),), "engine/core/kv_manager.py"),
    Seam("drafter", (("12.1", "propose"),), "engine/spec/ngram.py"),
    Seam("quantiser", (("13.1", "quantize"),), "engine/quant/"),
    Seam("router", (("14.2", "route"),), "engine/core/router.py"),
    Seam("admission", (("15.1", "AdmissionControl"),), "lessons/l15_serving/solution.py"),
)


def is_lab(exercise: str) -> bool:
    """Whether a name is that of a lab; exercises have numbers."""
    return not exercise[0].isdigit()


@dataclass(frozen=True)
class Piece:
    """The code that fills a seam."""

    name: str
    exercise: str
    whose: Literal["yours", "reference", "engine"]
    why: str
    """Reason for not using the learner's code; empty for "yours"."""
    ours: str
    item: Any = None
    """Class or function; None: the engine's own code serves."""
    namespace: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def says(self) -> str:
        """Name in messages: "scheduler (exercise 10.1)", "decode (lab cpp-paged-decode)"."""
        return f"{self.name} ({'lab' if is_lab(self.exercise) else 'exercise'} {self.exercise})"


@dataclass(frozen=True)
class Pieces:
    """A piece for every seam."""

    by_name: dict[str, Piece]

    def __getitem__(self, name: str) -> Piece:
        return self.by_name[name]

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.by_name.values())

    def has(self, name: str) -> bool:
        """Whether a piece, not the engine's own code, fills this seam."""
        return self.by_name[name].item is not None

    @property
    def yours(self) -> list[str]:
        return [piece.name for piece in self if piece.whose == "yours"]


def load_pieces(
    sources: Mapping[str, str],
    why_not: Callable[[str, str], str] = lambda exercise, source: "",
    reference: Callable[[str], str | None] = lambda exercise: None,
) -> Pieces:
    """Run the learner's cells and choose a piece for every seam.

    sources: exercise -> source of its cell. why_not(exercise, source): reason to leave it out, such as a failed check;
    empty to use it. reference(exercise): source of the solution, for the half of a pair that the learner has not
    written (allocator and prefix cache work together), and for admission control, which only lessons have.
    """
    pieces = {seam.name: _choose(seam, sources, why_not) for seam in SEAMS}
    pair = ("allocator", "prefix_cache")
    has_half = any(pieces[name].item is not None for name in pair)
    for name in (*pair, "admission") if has_half else ("admission",):
        source = reference(pieces[name].exercise)
        if pieces[name].item is None and source is not None:
            pieces[name] = run_piece(pieces[name], pieces[name].exercise, source, "reference")
    if any(pieces[name].item is None for name in pair):
        alone = "the engine's pool serves: the other half of the pair is missing"
        pieces |= {name: _ours(pieces[name], alone) for name in pair if pieces[name].item is not None}
    return Pieces(pieces)


def reference_pieces(reference: Callable[[str], str | None]) -> Pieces:
    """Return the reference solutions as pieces, as far as they exist."""
    sources = {name: text for seam in SEAMS for name, _ in seam.exercises if (text := reference(name))}
    pieces = load_pieces(sources)
    return Pieces(
        {
            piece.name: Piece(**{**vars(piece), "whose": "reference"}) if piece.item is not None else piece
            for piece in pieces
        }
    )


def _choose(seam: Seam, sources: Mapping[str, str], why_not: Callable[[str, str], str]) -> Piece:
    """Return the learner's piece from the first exercise that is usable, else the engine's own."""
    first = Piece(seam.name, seam.exercises[0][0], "engine", "not written yet", seam.ours)
    reasons = []
    for exercise, _ in seam.exercises:
        if (source := sources.get(exercise)) is None:
            continue
        if reason := why_not(exercise, source):
            reasons.append(f"{exercise} {reason}")
            continue
        piece = run_piece(first, exercise, source, "yours")
        if piece.item is not None:
            return piece
        reasons.append(f"{exercise} {piece.why}")
    return _ours(first, "; ".join(reasons)) if reasons else first


def run_piece(
    base: Piece, exercise: str, source: str, whose: Literal["yours", "reference"] = "yours"
) -> Piece:
    """Run a cell and take its object, or compile a lab. What fails becomes the engine's own code, with the reason."""
    why = "" if whose == "yours" else base.why
    if is_lab(exercise):
        try:
            kernel = NativeDecode(library(find_lab(exercise), source))
        except (NotCompiled, OSError, AttributeError) as error:
            return _ours(base, f"does not compile: {error}")
        return Piece(base.name, exercise, whose, why, base.ours, kernel)
    wanted = next(name for seam in SEAMS for number, name in seam.exercises if number == exercise)
    file = SOURCE.format(exercise)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = types.ModuleType(f"exercise_{exercise.replace('.', '_')}")
    try:
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # the learner's own code
    except (Exception, SystemExit) as error:
        return _ours(base, f"does not run: {type(error).__name__}: {error}")
    if wanted not in module.__dict__:
        return _ours(base, f"does not define {wanted}")
    return Piece(
        base.name, exercise, whose, why, base.ours, module.__dict__[wanted], namespace=module.__dict__
    )


def _ours(piece: Piece, why: str) -> Piece:
    return Piece(piece.name, piece.exercise, "engine", why, piece.ours)
