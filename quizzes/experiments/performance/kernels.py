"""Loads, tiles, orders of sums and graph sizes of GPU kernels, counted."""

from collections.abc import Iterable
from functools import reduce
from typing import Any

from quizzes.experiments import Context, Result, arg, experiment

LANES = 32
SECTOR, LINE = 32, 128
"""Bytes that memory hands out at least, and of a cache line (NVIDIA, CUDA C++ programming guide, since Volta)."""


@experiment("E27")
def coalescing(
    stride: int = arg(1, 0, 65_536),
    bytes_per_lane: int = arg(4, 1, 16),
    offset: int = arg(0, 0, 4096),
) -> Result:
    """Count the 32-byte sectors that one load instruction of a warp touches.

    Returns: Lane i loads `bytes_per_lane` bytes at offset + i * stride numbers of that size.
        sectors [sectors]; lines [lines]; moved_bytes, useful_bytes [B]; efficiency [share]
    """
    starts = [offset + lane * stride * bytes_per_lane for lane in range(LANES)]
    wanted = {byte for start in starts for byte in range(start, start + bytes_per_lane)}
    sectors = {byte // SECTOR for byte in wanted}
    return Result(
        sectors=len(sectors),
        lines=len({byte // LINE for byte in wanted}),
        moved_bytes=SECTOR * len(sectors),
        useful_bytes=len(wanted),
        efficiency=len(wanted) / (SECTOR * len(sectors)),
    )


@experiment("E24")
def gemm_tiles(
    m: int = arg(4096, 1, 65_536),
    n: int = arg(4096, 1, 65_536),
    k: int = arg(4096, 1, 65_536),
    tile_m: int = arg(128, 8, 512),
    tile_n: int = arg(128, 8, 512),
    sms: int = arg(132, 1, 1024),
    bytes_per_number: int = arg(2, 1, 8),
) -> Result:
    """Count the loads of a tiled matrix product, and the processors that its last wave leaves idle.

    Returns: C [m, n] = A [m, k] B [k, n], one thread block for each tile of C.
        tiles [tiles]
        waves [waves]: Rounds in which `sms` thread blocks run at a time.
        wave_use [share]: Tiles over the places in all waves.
        loaded_mb [MB]: Tiles of A and B that thread blocks load into shared memory, through L2.
        smallest_mb [MB]: A and B once each: the minimum traffic from HBM.
        intensity [FLOP/B]: Arithmetic over `loaded_mb`.
    """
    heights = [min(tile_m, m - row) for row in range(0, m, tile_m)]
    widths = [min(tile_n, n - column) for column in range(0, n, tile_n)]
    tiles = len(heights) * len(widths)
    waves = -(-tiles // sms)
    loaded = (sum(heights) * len(widths) + sum(widths) * len(heights)) * k * bytes_per_number
    return Result(
        tiles=tiles,
        waves=waves,
        wave_use=tiles / (waves * sms),
        loaded_mb=loaded / 1e6,
        smallest_mb=(m * k + k * n) * bytes_per_number / 1e6,
        intensity=2 * m * n * k / loaded,
    )


@experiment("E27")
def reduction_order(
    ctx: Context,
    n: int = arg(4096, 2, 20_000),
    splits: list[int] = arg([1, 2, 4, 8, 16], 1, 256, count=(1, 16)),
) -> Result:
    """Sum the same fp32 numbers in different orders, as split-K and split-KV kernels do.

    Returns:
        distinct [values]: Different fp32 results over the split counts.
        values: Sum by split count, in the order given.
        spread [ulp]: Largest minus smallest, in units of the last place of the first.
        is_exact_in_integers: Whether the same splits give one result with integers (as in an int8 product).
    """
    import numpy as np

    numbers = np.array([ctx.rng.gauss(0, 1) for _ in range(n)], dtype=np.float32)
    integers = [ctx.rng.randrange(-127, 128) for _ in range(n)]

    def total(parts: Iterable[Any]) -> Any:
        """Add from left to right; every addition rounds to fp32."""
        return reduce(lambda one, other: np.float32(one + other), parts, np.float32(0))

    values = [float(total(map(total, np.array_split(numbers, parts)))) for parts in splits]
    whole = {sum(sum(integers[part::parts]) for part in range(parts)) for parts in splits}
    ulp = float(np.spacing(np.float32(abs(values[0]))))
    return Result(
        distinct=len(set(values)),
        values=values,
        spread=(max(values) - min(values)) / ulp,
        is_exact_in_integers=len(whole) == 1,
    )


@experiment("E26")
def graph_padding(batches: list[int] = arg([1, 3, 9, 17, 30], 1, 512, count=(1, 64))) -> Result:
    """Find which CUDA graph of this engine replays decode batches of given sizes.

    Returns: A batch runs in the next larger graph size (`engine/config/graph_sizes.py`).
        sizes [rows]: Graph size that each batch runs in, in the order given.
        padded_rows [rows]
        graphs [graphs]: Number of different graphs that these batches need.
        waste [share]: Padding over all rows computed.
    """
    from engine.config.graph_sizes import graph_size

    sizes = [graph_size(rows) for rows in batches]
    padded = [size - rows for size, rows in zip(sizes, batches, strict=True)]
    return Result(sizes=sizes, padded_rows=padded, graphs=len(set(sizes)), waste=sum(padded) / sum(sizes))
