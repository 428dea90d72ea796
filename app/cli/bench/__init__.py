"""`prep bench`: the results of `app.bench` as tables or JSON. One file per benchmark.

common.py     shared options, run times, busy-machine warning and exit codes
against.py    options and tables of comparisons with a second engine
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
    """Measure the engine. Ctrl-C ends a benchmark early and prints the results so far."""


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
