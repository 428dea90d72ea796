"""Time the visual debugger's server on one trace: opening it, and the parts of the page Step at random steps.

A fresh process opens each trace with an empty cache, and a second one with the filled cache. Seeks go to
random steps and build the parts for the browser; within a window the browser plays without requests.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from app.bench.timing import Spread, Tell, partial_results, spread
from prep_common.child_process import PYTHON_M

if TYPE_CHECKING:
    from engine.trace.protocol import Trace

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RunCost:
    """Costs of one trace in one fresh process."""

    trace: str
    file_mb: float
    blocks: int
    steps: int
    requests: int
    block_events: int
    open_s: float
    """Seconds from the file to the summaries of the whole run, with an empty cache."""
    open_again_s: float
    """The same in another process, with the columns already in the cache."""
    first_parts_s: float
    """Seconds for the first picture of the page Step: figures, the window of block changes, details."""
    seek_window: Spread
    """Time of a jump to another window: the state of all blocks, and all changes in the window."""
    seek_details: Spread
    """Time of a jump inside a window: rows, tables, queue, reasons and sentences of the steps around it."""
    state: Spread
    """Time for the tables, owners, hashes, free queue and reasons of one step, as used by the other pages."""
    server_rss_mb: float
    """Peak memory of the server's process, mapped files included."""
    reader_rss_mb: float
    """Peak memory of the largest process that read the file, if any."""
    warnings: list[str]


@dataclass
class DebuggerReport:
    runs: list[RunCost] = field(default_factory=list)
    interrupted: bool = False


def measure(
    tell: Tell, sizes: list[tuple[int, int]], traces: list[Path], *, seeks: int = 100
) -> DebuggerReport:
    """Time existing `traces`, and traces of `sizes` (blocks, steps) that the real scheduler makes."""
    from app.bench.big_trace import make_trace

    report = DebuggerReport()
    with partial_results(report):
        with TemporaryDirectory(prefix="prep-bench-") as folder:
            for blocks, steps in sizes:
                path = Path(folder) / f"{blocks}x{steps}.itrace"
                make_trace(path, blocks, steps, tell)
                report.runs.append(_measure_file(tell, path, seeks))
                path.unlink()
        report.runs += [_measure_file(tell, path.resolve(), seeks) for path in traces]
    return report


def _measure_file(tell: Tell, path: Path, seeks: int) -> RunCost:
    with TemporaryDirectory(prefix="prep-bench-") as home:
        tell(f"opening {path.name} with an empty cache")
        first = _in_process(path, seeks, home)
        tell(f"opening {path.name} again")
        again = _in_process(path, 1, home)
    spreads = {name: Spread(**first[name]) for name in ("seek_window", "seek_details", "state")}
    return RunCost(**{**first, "open_again_s": again["open_s"], **spreads})


def _in_process(path: Path, seeks: int, home: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREP_HOME": home}
    command = [*PYTHON_M, __name__, str(path), str(seeks)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if process.returncode != 0:
        raise RuntimeError(
            f"the process failed: {(process.stderr.strip().splitlines() or ['no message'])[-1]}"
        )
    return json.loads(process.stdout)


def main(path: Path, seeks: int) -> None:
    """Measure one trace in the fresh process and print the fields of a RunCost."""
    from app.debugger.runs import open_run
    from app.debugger.step_view import parts

    start = perf_counter()
    run = open_run(f"file:{path}")
    index = run.index
    num_requests, num_events = len(index.requests), int(index.block_event_counts().sum())
    opened = perf_counter()
    cut = parts.sizes(run)
    for key in parts.first_keys(run, cut, 0):
        parts.make(run, cut, key)
    shown = perf_counter()
    rng = random.Random(0)
    steps = [rng.randrange(index.num_steps) for _ in range(seeks)]
    first_window = [max(0, min(step - cut.window // 2, index.num_steps - cut.window)) for step in steps]
    windows = _times(lambda first: parts.make(run, cut, f"w:{first}"), first_window)
    details = _times(lambda step: parts.make(run, cut, f"d:{step // cut.chunk * cut.chunk}"), steps)
    states = _times(lambda step: _ask_everything(run.reader(step), step), steps)
    figures = {
        "trace": path.name,
        "file_mb": path.stat().st_size / 1e6,
        "blocks": index.num_blocks,
        "steps": index.num_steps,
        "requests": num_requests,
        "block_events": num_events,
        "open_s": opened - start,
        "first_parts_s": shown - opened,
        "seek_window": asdict(windows),
        "seek_details": asdict(details),
        "state": asdict(states),
        "server_rss_mb": _peak_mb(resource.RUSAGE_SELF),
        "reader_rss_mb": _peak_mb(resource.RUSAGE_CHILDREN),
        "warnings": run.warnings,
    }
    print(json.dumps(figures))


def _times(ask: Callable[[int], object], places: list[int]) -> Spread:
    seconds = []
    for place in places:
        start = perf_counter()
        ask(place)
        seconds.append(perf_counter() - start)
    return spread(seconds)


def _ask_everything(reader: Trace, step: int) -> None:
    state = reader.state_at(step)
    _ = state.block_tables, state.num_computed, state.num_tokens, state.owners
    _ = state.blocks.ref, state.blocks.owner, state.blocks.hash, state.blocks.free_queue()
    reader.step(step)


def _peak_mb(who: int) -> float:
    kilobytes = resource.getrusage(who).ru_maxrss
    return kilobytes / (1e6 if sys.platform == "darwin" else 1e3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
