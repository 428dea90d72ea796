"""Record the evidence of servers with wrong settings and of their healthy twins; the tests of the trees read it.

    python -m tests.diagnosis.record [NAME ...] [--seed N]

Each scenario runs twice, about 12 s each: with its fault, and healthy. With a seed only the healthy twin runs, under
other arrivals. The file of a faulty run has the cause as its label.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvloop

from engine.server.child_server import PREP, ChildServer
from engine.server.diagnosis.collect import Sources, collect
from engine.server.diagnosis.evidence import Evidence, save
from engine.server.load_client import Load, Objective, due
from engine.sim.workload import Lengths, Workload

FOLDER = Path(__file__).parent / "recordings"
SECONDS = 6.0


@dataclass(frozen=True)
class Traffic:
    rate: float = 5
    prompt: str = "90-140"
    output: str = "32"
    num_prefixes: int = 3
    prefix_len: int = 64

    def workload(self, seed: int) -> Workload:
        return Workload(
            max(1, round(self.rate * SECONDS)), self.rate, Lengths.parse(self.prompt), Lengths.parse(self.output),
            num_prefixes=self.num_prefixes, prefix_len=self.prefix_len, seed=seed,
        )  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """Options of `prep serve` and traffic, healthy and with the fault."""

    cause: str
    healthy: Sequence[str] = ()
    fault: Sequence[str] = ()
    traffic: Sequence[Traffic] = (Traffic(),)
    fault_traffic: Sequence[Traffic] = field(default=())


CHAT = (Traffic(20, "90-140", "120-200"),)
SCENARIOS = {
    each.cause: each
    for each in (
        Scenario("kv_too_small", fault=["--num-gpu-blocks-override", "26"], traffic=CHAT),
        Scenario(
            "chunk_too_small",
            fault=["--max-num-batched-tokens", "8", "--max-num-seqs", "8"],
            traffic=[Traffic(8, "400-600", "12", 0)],
        ),
        Scenario("caching_off", fault=["--no-enable-prefix-caching"]),
        Scenario(
            "overload",
            ["--max-num-seqs", "8"],
            ["--max-num-seqs", "8"],
            CHAT,
            [Traffic(160, output="120-200")],
        ),
        Scenario("seqs_too_low", fault=["--max-num-seqs", "1"], traffic=CHAT),
        Scenario("model_len_too_short", fault=["--max-model-len", "116"]),
        Scenario(
            "queue_limit",
            ["--max-num-seqs", "3"],
            ["--max-num-seqs", "3", "--max-num-queued-reqs", "0"],
            CHAT,
        ),
        Scenario("timestamp_at_head", fault_traffic=[Traffic(num_prefixes=0)]),
        Scenario("template_changed", fault_traffic=[Traffic(prefix_len=20)]),
    )
}


def recorded(options: Sequence[str], traffic: Sequence[Traffic], seed: int = 1) -> Evidence:
    """Serve `shop` with these options under this traffic, beside a diagnosis with all inputs."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(traffic) + 1) as beside:
        log = Path(folder) / "requests"
        args = ["serve", "shop", "--request-log", str(log), *options]
        with ChildServer(PREP, args=args, name="the server", log=Path(folder) / "log") as server:
            sources = Sources((server.url,), window_s=SECONDS, logs=(log,), probe=True)
            watching = beside.submit(collect, sources)
            for number, each in enumerate(traffic):
                work = list(due(each.workload(seed + number), 1000))
                load = Load(server.url, "", None, Objective(), 20.0)
                beside.submit(uvloop.run, load.run(work))
            return watching.result()


def main() -> None:
    """Record the scenarios named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*SCENARIOS, []])
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in arguments.names or SCENARIOS:
        each = SCENARIOS[name]
        if arguments.seed is not None:
            evidence = recorded(each.healthy, each.traffic, arguments.seed)
            save(evidence, FOLDER / f"{name}.healthy{arguments.seed}.gz")
            continue
        save(recorded(each.healthy, each.traffic), FOLDER / f"{name}.healthy.gz")
        evidence = recorded(each.fault, each.fault_traffic or each.traffic)
        save(replace(evidence, label=name), FOLDER / f"{name}.fault.gz")


if __name__ == "__main__":
    main()
