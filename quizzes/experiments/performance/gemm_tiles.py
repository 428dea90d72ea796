from quizzes.experiments import Context, Result, arg, experiment


@experiment("E24")
def gemm_tiles(
    ctx: Context,
    m: int = arg(4096, 1, 65_536),
    n: int = arg(4096, 1, 65_536),
    k: int = arg(4096, 1, 65_536),
    tile_m: int = arg(128, 8, 512),
    tile_n: int = arg(128, 8, 512),
    sms: int = arg(132, 1, 1024),
    bytes_per_number: int = arg(2, 1, 8),
) -> Result:
    """Count the loads of a tiled matrix product, and the processors that its last wave leaves idle.

    Returns:
        C [m, n] = A [m, k] B [k, n], one thread block for each tile of C.
        tiles [tiles]
        waves [waves]: Rounds in which `sms` thread blocks run at a time.
        wave_use [share]: Tiles over the places in all waves.
        loaded_mb [MB]: Tiles of A and B that thread blocks load into shared memory, through L2.
        smallest_mb [MB]: A and B once each: the minimum traffic from HBM.
        intensity [FLOP/B]: Arithmetic over `loaded_mb`.
    """
    tiles = loaded = waves = in_wave = 0
    for row in range(0, m, tile_m):
        for column in range(0, n, tile_n):
            rows, columns = min(tile_m, m - row), min(tile_n, n - column)
            loaded += (rows + columns) * k * bytes_per_number
            tiles += 1
            if in_wave == 0:
                waves += 1
            in_wave = (in_wave + 1) % sms
    return Result(
        tiles=tiles,
        waves=waves,
        wave_use=tiles / (waves * sms),
        loaded_mb=loaded / 1e6,
        smallest_mb=(m * k + k * n) * bytes_per_number / 1e6,
        intensity=2 * m * n * k / loaded,
    )
