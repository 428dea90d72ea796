"""`prep kernels`: every operation of the engine in up to four forms.

names.py      operations and backends as users type them, and what runs where; prep kernels list
checking.py   prep kernels check
benching.py   prep kernels bench
explaining.py prep kernels explain
gpu.py        prep kernels gpu
lab.py        prep kernels lab
"""

from app.cli import terminal
from app.cli.kernels.benching import bench
from app.cli.kernels.checking import check
from app.cli.kernels.explaining import explain
from app.cli.kernels.gpu import gpu
from app.cli.kernels.lab import lab
from app.cli.kernels.names import list_, operation

kernels = terminal.command_app(
    list_,
    check,
    bench,
    explain,
    gpu,
    lab,
    help="The engine's operations in plain torch, C++, Triton and CUDA: list, check, measure, read, write.",
    shows=("explain", operation),
)
