"""`prep sim`: the engine's scheduler under load, with a cost model instead of a GPU.

options.py    options that several commands share
run.py        prep sim run
memory.py     prep sim kv
fleet.py      prep sim fleet
size.py       prep sim size
rooflines.py  prep sim roofline
listing.py    prep sim list
live.py       prep sim calibrate, prep sim check
"""

from __future__ import annotations

from app.cli import terminal
from app.cli.sim.fleet import fleet
from app.cli.sim.listing import list_
from app.cli.sim.live import calibrate, check
from app.cli.sim.memory import kv
from app.cli.sim.rooflines import roofline
from app.cli.sim.run import run
from app.cli.sim.size import size

app = terminal.command_app(no_args_is_help=True)


@app.callback()
def sim() -> None:
    """Simulate serving with the engine's scheduler, a virtual clock, and named models and GPUs.

    \b
    Examples:
      prep sim run --model llama-3-70b --gpu h100 --tp 8 --rate 4 --prompt 1000 --output 200
      prep sim kv --model llama-3-8b --gpu a10g
    """


app.command()(run)
app.command()(kv)
app.command()(fleet)
app.command()(size)
app.command()(roofline)
app.command("list")(list_)
app.command()(calibrate)
app.command()(check)
