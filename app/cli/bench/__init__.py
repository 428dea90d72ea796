"""`prep bench`: what `app.bench` measures, as a table or as JSON. One file per benchmark.

common.py     options that all of them have, and how they end
against.py    the same with a second engine beside ours
"""

from __future__ import annotations

from app.cli import terminal
from app.cli.bench.debugger import debugger
from app.cli.bench.grammar import grammar
from app.cli.bench.latency import latency
from app.cli.bench.lora import lora
from app.cli.bench.parallel import parallel
from app.cli.bench.quantization import quantization
from app.cli.bench.scheduler import scheduler
from app.cli.bench.speculation import speculation
from app.cli.bench.startup import startup
from app.cli.bench.swap import swap
from app.cli.bench.throughput import throughput

app = terminal.command_app(no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Benchmarks of the engine. Ctrl-C ends one early and prints what it has."""


for command in (
    throughput,
    latency,
    startup,
    scheduler,
    speculation,
    quantization,
    lora,
    grammar,
    swap,
    parallel,
    debugger,
):
    app.command()(command)
