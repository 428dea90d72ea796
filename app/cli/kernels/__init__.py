"""`prep kernels`: every operation of the engine in up to four forms.

names.py      operations and backends as users type them, and what runs where
listing.py    prep kernels list
checking.py   prep kernels check
benching.py   prep kernels bench
explaining.py prep kernels explain
"""

from __future__ import annotations

from app.cli import terminal
from app.cli.kernels.benching import bench
from app.cli.kernels.checking import check
from app.cli.kernels.explaining import explain
from app.cli.kernels.listing import list_

app = terminal.command_app(no_args_is_help=True)


@app.callback()
def kernels() -> None:
    """The engine's operations in plain torch, C++, Triton and CUDA: list, check, measure, read."""


app.command("list")(list_)
app.command()(check)
app.command()(bench)
app.command()(explain)
