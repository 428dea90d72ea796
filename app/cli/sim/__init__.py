"""`prep sim`: the engine's scheduler under load, with a cost model instead of a GPU.

options.py    options that several commands share
run.py        prep sim run
fleet.py      prep sim fleet
autoscale.py  prep sim autoscale
sizes.py      prep sim kv, size, roofline, list: arithmetic
live.py       prep sim calibrate, prep sim check
"""

from app.cli import terminal
from app.cli.sim.autoscale import autoscale
from app.cli.sim.fleet import fleet
from app.cli.sim.live import calibrate, check
from app.cli.sim.run import run
from app.cli.sim.sizes import kv, list_, roofline, size

HELP = """Simulate serving with the engine's scheduler, a virtual clock, and named models and GPUs.

\b
Examples:
  prep sim run --model llama-3-70b --gpu h100 --tp 8 --rate 4 --prompt 1000
  prep sim kv --model llama-3-8b --gpu a10g
"""

sim = terminal.command_app(run, kv, fleet, autoscale, size, roofline, list_, calibrate, check, help=HELP)
