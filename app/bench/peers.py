"""Our engine beside the others, in one run: `prep bench peers`.

For each model and precision every engine is loaded once; then the workloads run, round by round, each engine in its
turn (`turns.py`). The limits of the machine are measured before and after. An engine that is not installed, or fails,
is reported; the others continue. Finished rounds are saved after each one, so that a run can be resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from app.bench.against import default_threads
from app.bench.environments import MissingEngine, python_of
from app.bench.models import bench_model
from app.bench.settings import OTHER_ENGINES, Job, complete_job
from app.bench.side import Side, SideDied, SideSpec, prep_spec
from app.bench.timing import Tell, partial_results, watch_other_programs
from app.bench.turns import SideReport, Turns
from app.bench.workload import Lengths, Work, draw_work
from engine.models.loader import checkpoint_tensors, create_model
from kernels.bench.limits import Limits, Machine, measure_limits
from kernels.bench.limits import describe as describe_machine
from kernels.registry import preferred
from prep_common.busy import busy_programs
from prep_common.paths import write_atomically

OURS, ONE_THREAD = "prep", "prep, 1 thread"
ENGINES = (OURS, *OTHER_ENGINES)
SAVED, SAVED_QUICK = Path("runs") / "peers.json", Path("runs") / "peers-quick.json"
PATIENCE_S = 240.0
"""For any answer of an engine; vLLM needs a minute to start and to compile on two cores."""


@dataclass(frozen=True)
class Workload:
    """Requests that start together; `beside` busy programs run meanwhile."""

    name: str
    model: str
    num_prompts: int
    input_len: Lengths
    output_len: Lengths
    precisions: tuple[str, ...] = ("fp32", "bf16", "int8", "int4")
    beside: int = 0
    repeat: int = 1
    """Rounds for each round of the run: more where a round is short, as the memory bandwidth of a host varies."""

    @property
    def num_tokens(self) -> int:
        return self.input_len.high + self.output_len.high

    @property
    def engines(self) -> tuple[str, ...]:
        """On a busy machine also ours with one thread: more threads must not be slower."""
        return (OURS, ONE_THREAD, "vllm", "vllm-processes") if self.beside else ENGINES

    def draw(self, vocab_size: int, label: str, *, shorter: int = 1) -> Work:
        """Draw the requests of a round; `shorter` divides their output lengths."""
        output_len = Lengths(max(1, self.output_len.low // shorter), max(1, self.output_len.high // shorter))
        return draw_work(self.num_prompts, self.input_len, output_len, vocab_size, f"{self.name}/{label}")


FLOATS = ("fp32", "bf16")
LARGE = "dummy-386m"
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("shop-128", "shop", 128, Lengths(128, 256), Lengths(64, 128), FLOATS),
        Workload("shop-128-busy", "shop", 128, Lengths(64, 128), Lengths(32, 64), FLOATS, beside=1),
        Workload("386m-32", LARGE, 32, Lengths(16, 32), Lengths(16, 32)),
        Workload("386m-1", LARGE, 1, Lengths(32, 32), Lengths(64, 64), repeat=3),
    )
}
"""Small enough for a whole run in about half an hour on two cores. The matrices of shop fit into the
processor's caches, so fewer bits per weight are no gain there.
"""
QUICK_WORKLOADS = ("shop-128", "386m-1")
"""The measurements of `--quick`, in bf16."""
ROUNDS = 3
"""Rounds of a whole run."""
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "scheme": "int8"},
    "int4": {"dtype": "bfloat16", "scheme": "rtn"},
}


def engine_arguments(precision: str) -> dict[str, Any]:
    """Return our engine arguments: with a scheme, all matrices are quantised, the head included, as in GGUF."""
    chosen = dict(PRECISIONS[precision])
    if scheme := chosen.pop("scheme", None):
        config = {"quant_method": "online", "scheme": scheme, "lm_head": True}
        chosen["hf_overrides"] = {"quantization_config": config}
    return chosen


@dataclass
class Cell:
    """Rounds of one engine on one workload in one precision, or why there are none."""

    workload: str
    precision: str
    engine: str
    rounds: SideReport
    error: str = ""
    read_shares: list[float] = field(default_factory=list)
    """Bandwidth of decode steps as a share of torch's, once for each round; only for READ."""


Key = tuple[str, str, str]
"""Workload, precision, engine."""
READ: Key = ("386m-1", "bf16", OURS)
"""The measurement whose bandwidth is compared with torch's."""


@dataclass
class PeersReport:
    """All measurements of a run."""

    machine: Machine
    threads: int
    num_rounds: int
    limits: Limits | None = None
    cells: list[Cell] = field(default_factory=list)
    num_weights: dict[str, int] = field(default_factory=dict)
    """Model -> weights that every step multiplies by."""
    vocab_sizes: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Engine -> what is not installed, and how to install it."""
    other_cores: float = 0.0
    """Cores that other programs used meanwhile, the busy programs of a workload included."""
    seconds: float = 0.0
    interrupted: bool = False
    """Whether rounds are missing; also in the file of a run that was killed."""

    @property
    def has_rounds(self) -> bool:
        return any(cell.rounds.figures for cell in self.cells)

    def cell(self, workload: str, precision: str, engine: str) -> Cell | None:
        wanted = (workload, precision, engine)
        return next((c for c in self.cells if (c.workload, c.precision, c.engine) == wanted), None)

    def median(self, key: Key) -> float | None:
        """Return output tokens per second, or None if it was not measured."""
        cell = self.cell(*key)
        return cell.rounds.median if cell and cell.rounds.figures else None

    def ratio(self, one: Key, other: Key) -> float | None:
        """Return how many times as fast one measurement is as the other; None if one was not measured.

        Engines that took turns are compared round by round, as a host is faster at one moment than at another; rounds
        that a resumed run repeats for one engine alone are paired with the earlier ones of the others.
        """
        cells = self.cell(*one), self.cell(*other)
        figures = [cell.rounds.figures if cell else [] for cell in cells]
        if not all(figures):
            return None
        if one[:2] == other[:2]:
            return median(ours / theirs for ours, theirs in zip(*figures, strict=False))
        return median(figures[0]) / median(figures[1])

    def save(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self)))


class CannotStart(ValueError):
    """A run that cannot start as it was asked for, and the next step."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(problem)
        self.next_step = next_step


def load_report(path: Path) -> PeersReport:
    """Read what `PeersReport.save` wrote. Raises CannotStart for a file that is not one, or cannot be read."""
    try:
        raw = json.loads(path.read_text())
        raw["machine"] = Machine(**raw["machine"])
        raw["limits"] = raw["limits"] and Limits(**raw["limits"])
        raw["cells"] = [Cell(**{**cell, "rounds": SideReport(**cell["rounds"])}) for cell in raw["cells"]]
        report = PeersReport(**raw)
        _check(report)
    except OSError as error:
        raise CannotStart(f"{path} cannot be read: {error.strerror}", f"remove {path}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CannotStart(
            f"{path} is damaged or of another version of prep bench peers", f"delete {path}"
        ) from error
    return report


def _check(report: PeersReport) -> None:
    """Raise KeyError, TypeError or ValueError for what no run writes."""
    for cell in report.cells:
        if cell.precision not in PRECISIONS or cell.engine not in (ONE_THREAD, *ENGINES):
            raise ValueError(f"unknown: {cell.engine} in {cell.precision}")
        if cell.workload not in WORKLOADS:
            raise ValueError(f"unknown: {cell.workload}")
    numbers = [number for cell in report.cells for number in (*cell.rounds.figures, *cell.read_shares)]
    if report.limits is not None:
        numbers += [report.limits.read_bandwidth, report.limits.flops["float32"]]
    if not all(number > 0 for number in numbers):
        raise ValueError("a measurement is not above 0")


def measure(
    tell: Tell,
    *,
    workloads: Sequence[Workload],
    precisions: Sequence[str],
    engines: Sequence[str],
    rounds: int,
    saved: Path,
    resume: bool = False,
) -> PeersReport:
    """Run the comparison; Ctrl-C ends it early with the rounds that are done.

    saved: file for finished rounds. resume: continue with those in the file. Raises CannotStart if there are none or
    they are of another machine, commit or version; without `resume`, if the file holds an unfinished run; if no
    workload has one of the precisions; and if none of the engines is installed.
    """
    began, other_cores = perf_counter(), watch_other_programs()
    groups = _groups(workloads, precisions)
    report = _first_report(saved, resume)
    report.num_rounds, report.interrupted = rounds, True
    pythons = _find_engines(report, engines)
    with partial_results(report):
        _measure_limits(tell, report)
        for model, precision, group in groups:
            run = _Group(tell, report, saved, pythons, model, precision, group)
            run.measure()
        _measure_limits(tell, report)
        report.interrupted = False
    report.seconds += perf_counter() - began
    report.other_cores = other_cores()
    if report.has_rounds:
        report.save(saved)
    return report


def _first_report(saved: Path, resume: bool) -> PeersReport:
    """Return an empty report, or the saved one to continue. Raises CannotStart."""
    report = PeersReport(this_machine(), default_threads(), 0)
    earlier = load_report(saved) if saved.exists() else report
    if not resume:
        if earlier.interrupted and earlier.has_rounds:
            raise CannotStart(
                f"{saved} holds the rounds of an unfinished run",
                f"add --resume to continue it, or delete {saved}",
            )
        return report
    if not earlier.has_rounds:
        raise CannotStart(f"nothing to resume in {saved}", "leave --resume out")
    if changes := _changes(earlier.machine, report.machine):
        raise CannotStart(
            f"{saved} cannot be continued: {'; '.join(changes)}",
            f"measure as before, or delete {saved} and leave --resume out",
        )
    earlier.missing, earlier.cells = {}, [cell for cell in earlier.cells if not cell.error]
    return earlier


def _changes(then: Machine, now: Machine) -> list[str]:
    """Say what has changed of all that our engine's speed depends on."""
    names = {"hardware": "the machine", "torch": "torch", "python": "Python", "commit": "the commit"}
    return [
        f"{told} was {getattr(then, name)}, now it is {getattr(now, name)}"
        for name, told in names.items()
        if getattr(then, name) != getattr(now, name)
    ]


def this_machine() -> Machine:
    """Return the description of this machine; without C++ kernels our engine is another one."""
    machine = describe_machine("cpu")
    if preferred("linear", "cpu") == "cpu":
        return machine
    return replace(machine, hardware=f"{machine.hardware}; prep without its C++ kernels")


def _groups(
    workloads: Sequence[Workload], precisions: Sequence[str]
) -> list[tuple[str, str, list[Workload]]]:
    """Return (model, precision, workloads): what needs the same engines loaded. Raises CannotStart if there is none."""
    groups = []
    for model in dict.fromkeys(workload.model for workload in workloads):
        for precision in precisions:
            group = [
                workload
                for workload in workloads
                if workload.model == model and precision in workload.precisions
            ]
            if group:
                groups.append((model, precision, group))
    if not groups:
        known = "; ".join(f"{workload.name} in {', '.join(workload.precisions)}" for workload in workloads)
        raise CannotStart(f"no workload is measured in {', '.join(precisions)}", f"choose from {known}")
    return groups


def _find_engines(report: PeersReport, engines: Sequence[str]) -> dict[str, str]:
    """Return the interpreter of each engine; note those that are not installed. Raises CannotStart if none is."""
    pythons, missing = {}, None
    for name in engines:
        try:
            pythons[name] = "" if name == OURS else python_of(OTHER_ENGINES[name].environment)
        except MissingEngine as error:
            missing = error
            report.missing[name] = f"{error}; {error.make}"
    if missing and not pythons:
        raise CannotStart(str(missing), missing.make)
    return pythons


def _measure_limits(tell: Tell, report: PeersReport) -> None:
    """Measure this machine; the better of two measurements counts, because other programs disturb each."""
    limits = measure_limits("cpu", tell)
    report.limits = limits if report.limits is None else report.limits.or_better(limits)


class _Group:
    """The workloads of one model in one precision."""

    def __init__(
        self,
        tell: Tell,
        report: PeersReport,
        saved: Path,
        pythons: dict[str, str],
        model: str,
        precision: str,
        workloads: list[Workload],
    ) -> None:
        self._tell, self._report, self._saved, self._pythons = tell, report, saved, pythons
        self._model, self._precision, self._workloads = model, precision, workloads
        self._sides: dict[str, Side] = {}

    def measure(self) -> None:
        """Load the engines that have rounds to do, and run them."""
        with ExitStack() as stack:
            folder, engine = stack.enter_context(
                bench_model(self._model, engine_arguments(self._precision), with_weights=True)
            )
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="prep-peers-")))
            job = complete_job(
                folder,
                {**engine, "skip_tokenizer_init": True},
                num_seqs=max(workload.num_prompts for workload in self._workloads),
                num_tokens=max(workload.num_tokens for workload in self._workloads),
                scratch=scratch,
            )
            self._report.num_weights[self._model] = num_weights(job)
            self._report.vocab_sizes[self._model] = job.config.vocab_size
            turns = Turns(stack)
            for name in dict.fromkeys(name for workload in self._workloads for name in workload.engines):
                self._start(turns, name, job)
            for workload in self._workloads:
                self._run(turns, workload, job.config.vocab_size)

    def _start(self, turns: Turns, name: str, job: Job) -> None:
        its_work = [workload for workload in self._workloads if name in workload.engines]
        python = self._pythons.get(OURS if name == ONE_THREAD else name)
        if python is None or all(self._is_done(workload, name) for workload in its_work):
            return
        self._tell(f"{self._model}, {self._precision}: starting {name}")
        said = SideReport(name)
        threads = 1 if name == ONE_THREAD else self._report.threads
        cells = [self._cell(workload, name, add=True) for workload in its_work]
        try:
            spec = self._spec(name, python, job)
            self._sides[name] = turns.start(spec, str(job.config.path), said, threads=threads)
        except (SideDied, ValueError) as error:  # ValueError: an engine without this precision
            for cell in cells:
                cell.error = str(error)
            return
        for cell in cells:
            for what in ("engine", "torch", "device", "threads", "load_seconds"):
                setattr(cell.rounds, what, getattr(said, what))

    def _spec(self, name: str, python: str, job: Job) -> SideSpec:
        if name in (OURS, ONE_THREAD):
            return replace(prep_spec(job.engine, name=name), patience_s=PATIENCE_S)
        return replace(OTHER_ENGINES[name].side(python, job), patience_s=PATIENCE_S)

    def _run(self, turns: Turns, workload: Workload, vocab_size: int) -> None:
        """Warm every engine up, then run the rounds that are missing."""

        def attempt(name: str, what: str, do: Callable[[Side, Cell], None]) -> None:
            cell = self._cell(workload, name)
            self._tell(f"{workload.name}, {self._precision}: {what}, {name}")
            try:
                do(self._sides[name], cell)
            except (SideDied, RuntimeError) as error:
                cell.error = str(error)
                turns.remove(self._sides.pop(name))

        def names() -> list[str]:
            mine = [name for name in workload.engines if name in self._sides]
            return [name for name in mine if not self._is_done(workload, name)]

        with busy_programs(workload.beside):
            for name in names():
                work = workload.draw(vocab_size, "warm-up", shorter=4)
                attempt(name, "warming up", lambda side, cell: turns.warm_up(side, work))  # noqa: B023
            for number in range(self._num_rounds(workload)):
                work = workload.draw(vocab_size, str(number))
                for name in names():
                    if len(self._cell(workload, name).rounds.figures) <= number:
                        what = f"round {number + 1} of {self._num_rounds(workload)}"
                        attempt(name, what, lambda side, cell: self._round(turns, side, cell, work))  # noqa: B023
                        self._report.save(self._saved)

    def _round(self, turns: Turns, side: Side, cell: Cell, work: Work) -> None:
        """Run a round, and for READ one more request, whose reading is compared with torch's."""
        turns.round(side, cell.rounds, work)
        if (cell.workload, cell.precision, cell.engine) == READ:
            with turns.only(side):
                share = side.ask("read_share", work.prompts, work.max_tokens).result
            cell.read_shares += [] if share is None else [share]

    def _cell(self, workload: Workload, name: str, *, add: bool = False) -> Cell:
        cell = self._report.cell(workload.name, self._precision, name)
        if cell is None:
            cell = Cell(workload.name, self._precision, name, SideReport(name))
            if add:
                self._report.cells.append(cell)
        return cell

    def _is_done(self, workload: Workload, name: str) -> bool:
        return len(self._cell(workload, name).rounds.figures) >= self._num_rounds(workload)

    def _num_rounds(self, workload: Workload) -> int:
        return self._report.num_rounds * workload.repeat


def num_weights(job: Job) -> int:
    """Return the number of weights in matrices that every step multiplies by; a tied embedding is the head."""
    tensors = checkpoint_tensors(create_model(job.config, "meta"))
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.dim() == 2}
    if not job.config.tie_word_embeddings:
        matrices = {name: tensor for name, tensor in matrices.items() if "embed_tokens" not in name}
    return sum(tensor.numel() for tensor in matrices.values())
