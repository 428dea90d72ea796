"""A tiled matrix product: loads counted tile by tile, and the last wave that leaves processors idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

Size = Annotated[int, Field(ge=1, le=65536)]
Tile = Annotated[int, Field(ge=8, le=512)]


@dataclass(frozen=True)
class Tiles:
    """C [m, n] = A [m, k] B [k, n], one thread block for each tile of C."""

    tiles: Annotated[int, "tiles"]
    waves: Annotated[int, "waves"]
    """Rounds in which `sms` thread blocks run at a time."""
    wave_use: Annotated[float, "share"]
    """Tiles over the places in all waves."""
    loaded_mb: Annotated[float, "MB"]
    """Tiles of A and B that thread blocks load into shared memory, through L2."""
    smallest_mb: Annotated[float, "MB"]
    """A and B once each: what has to come from HBM at least."""
    intensity: Annotated[float, "FLOP/B"]
    """Arithmetic over `loaded_mb`."""


@experiment("E24")
def gemm_tiles(
    ctx: Context,
    *,
    m: Size = 4096,
    n: Size = 4096,
    k: Size = 4096,
    tile_m: Tile = 128,
    tile_n: Tile = 128,
    sms: Annotated[int, Field(ge=1, le=1024)] = 132,
    bytes_per_number: Annotated[int, Field(ge=1, le=8)] = 2,
) -> Tiles:
    """Walk over the tiles of a product as its thread blocks do, and count."""
    tiles = loaded = waves = in_wave = 0
    for row in range(0, m, tile_m):
        for column in range(0, n, tile_n):
            rows, columns = min(tile_m, m - row), min(tile_n, n - column)
            loaded += (rows + columns) * k * bytes_per_number
            tiles += 1
            if in_wave == 0:
                waves += 1
            in_wave = (in_wave + 1) % sms
    return Tiles(
        tiles=tiles,
        waves=waves,
        wave_use=tiles / (waves * sms),
        loaded_mb=loaded / 1e6,
        smallest_mb=(m * k + k * n) * bytes_per_number / 1e6,
        intensity=2 * m * n * k / loaded,
    )
