"""`prep bench`: the results of `app.bench` as tables or JSON.

common.py    run times, the warning on a busy machine, exit codes
against.py   options and tables of comparisons with a second engine
peers.py     our engine beside the others, in one report
speed.py     throughput, latency, startup, scheduler, parallel
features.py  speculation, quantization, lora, grammar, swap, sleep
fleet.py     a live fleet against its simulation
debugger.py  opening and seeking in traces
labs.py      seconds from a save to the verdict on a lab
"""

from app.cli import terminal
from app.cli.bench.debugger import debugger
from app.cli.bench.features import grammar, lora, quantization, sleep, speculation, swap
from app.cli.bench.fleet import fleet
from app.cli.bench.labs import labs
from app.cli.bench.peers import peers
from app.cli.bench.speed import latency, parallel, scheduler, startup, throughput

bench = terminal.command_app(
    throughput,
    latency,
    peers,
    startup,
    scheduler,
    speculation,
    quantization,
    lora,
    grammar,
    swap,
    sleep,
    parallel,
    fleet,
    debugger,
    labs,
    help="Measure the engine. Ctrl-C ends a benchmark early and prints the results so far.",
)
