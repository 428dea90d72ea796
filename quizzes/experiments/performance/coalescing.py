from quizzes.experiments import Context, Result, arg, experiment

LANES = 32
SECTOR, LINE = 32, 128
"""Bytes that memory hands out at least, and of a cache line (NVIDIA, CUDA C++ programming guide, since Volta)."""


@experiment("E27")
def coalescing(
    ctx: Context,
    stride: int = arg(1, 0, 65_536),
    bytes_per_lane: int = arg(4, 1, 16),
    offset: int = arg(0, 0, 4096),
) -> Result:
    """Count the 32-byte sectors that one load instruction of a warp touches.

    Lane i loads `bytes_per_lane` bytes at offset + i * stride numbers of that size. Each sector counts once.

    Returns:
        sectors [sectors]
        lines [lines]
        moved_bytes, useful_bytes [B]
        efficiency [share]
    """
    sectors, lines, wanted = set(), set(), set()
    for lane in range(LANES):
        start = offset + lane * stride * bytes_per_lane
        for byte in range(start, start + bytes_per_lane):
            wanted.add(byte)
            sectors.add(byte // SECTOR)
            lines.add(byte // LINE)
    return Result(
        sectors=len(sectors),
        lines=len(lines),
        moved_bytes=SECTOR * len(sectors),
        useful_bytes=len(wanted),
        efficiency=len(wanted) / (SECTOR * len(sectors)),
    )
