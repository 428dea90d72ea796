"""Positions of 4-bit weights in the packed layouts of checkpoints, read from the packing code itself."""

from collections.abc import Callable
from typing import Any, Literal

from quizzes.experiments import BadArguments, Result, arg, experiment
from quizzes.experiments.quantization import _marlin

Layout = Literal["awq", "gptq", "compressed-tensors", "engine", "marlin"]


@experiment("E31")
def packed_layout(
    layout: Layout = "awq",
    rows: int = arg(16, 8, 256, multiple_of=8),
    columns: int = arg(16, 8, 256, multiple_of=8),
    word: int = arg(0, 0, 32_767),
) -> Result:
    """Show which weights of a rows x columns matrix lie in one 32-bit word of a packed layout.

    rows are outputs, columns inputs. The engine's layout has bytes, of which four in a row count as one word here.
    The positions are measured: the packing code gets matrices whose weights hold one bit of their own number each, and
    the nibbles of all packed matrices, read together, give the number. marlin is the layout into which vLLM repacks
    checkpoints for its GPU kernel; it needs multiples of 64 rows and 16 columns (see quantization.marlin_tile).

    Returns: Nibbles from the lowest bits to the highest.
        words [words]: In the packed tensor; `word` counts row by row.
        tensor_shape: Of the packed tensor, in its own elements.
        rows_in_word, columns_in_word [index]: Row and column of the weight in each nibble.
        neighbours: outputs, if a word's nibbles belong to one column; inputs, if they belong to one row; or both.
        in_order: Whether they lie in ascending order, by row and column.
        is_permutation: Whether each weight lies in exactly one nibble of the tensor.
    """
    import torch

    if layout == "marlin":
        _check_marlin(rows, columns)
    pack = _packers()[layout]
    weights, shape = _weight_numbers(pack, rows, columns)
    num_words = len(weights) // 8
    if word >= num_words:
        raise BadArguments(f"the packed matrix has {num_words} words, from 0 to {num_words - 1}; got {word}")
    inside = weights[8 * word : 8 * word + 8]
    rows_in_word, columns_in_word = (inside // columns).tolist(), (inside % columns).tolist()
    is_column, is_row = len(set(columns_in_word)) == 1, len(set(rows_in_word)) == 1
    return Result(
        words=num_words,
        tensor_shape=list(shape),
        rows_in_word=rows_in_word,
        columns_in_word=columns_in_word,
        neighbours="outputs" if is_column else "inputs" if is_row else "both",
        in_order=inside.equal(inside.sort().values),
        is_permutation=weights.sort().values.equal(torch.arange(rows * columns)),
    )


def _packers() -> dict[str, Callable[[Any], Any]]:
    """Return functions by layout: uint8 [N, K] of 0 to 15 -> the packed tensor, by the engine's own code."""
    import torch

    from engine.quant.layouts import AWQLayout, GPTQLayout, PackedLayout
    from engine.quant.rounding import Rounded
    from kernels import ops

    def rounded(steps: Any) -> Rounded:
        count, size = steps.shape  # one group
        zero = torch.zeros(count, 1, dtype=torch.uint8)
        return Rounded(steps, torch.ones(count, 1), zero, torch.zeros(size, dtype=torch.long))

    return {
        "awq": lambda steps: AWQLayout(steps.shape[1]).pack(rounded(steps))["qweight"],
        "gptq": lambda steps: GPTQLayout(steps.shape[1], 1).pack(rounded(steps))["qweight"],
        "compressed-tensors": lambda steps: PackedLayout(steps.shape[1], True).pack(rounded(steps))[
            "weight_packed"
        ],
        "engine": ops.pack_int4,
        "marlin": _marlin.pack,
    }


def _check_marlin(rows: int, columns: int) -> None:
    if rows % _marlin.TILE_N or columns % _marlin.TILE_K:
        raise BadArguments(
            f"marlin needs rows in multiples of {_marlin.TILE_N} and columns in multiples of {_marlin.TILE_K}, got "
            f"{rows} x {columns}; use --set rows=64 --set columns=16"
        )


@experiment("E31")
def marlin_tile(
    rows: int = arg(64, 64, 256, multiple_of=64),
    columns: int = arg(16, 16, 256, multiple_of=16),
    lane: int = arg(5, 0, 31),
    instruction: int = arg(0, 0, 7),
    tile: int = arg(0, 0, 63),
) -> Result:
    """Show one tile of Marlin's layout: which word, nibble and thread of a warp holds each 4-bit weight.

    A tile has 16 inputs x 64 outputs. A warp multiplies it with eight mma.m16n8k16 instructions, each with the weights
    of 16 inputs x 8 outputs (B fragment). `tile` counts along the outputs, then along the inputs. Words and nibbles are
    measured: the packing code gets weights that hold one bit of their own number each.

    Returns: Rows are outputs, columns inputs, numbered within the matrix.
        words_of_lane [index]: Words of the packed tensor that the lane reads, with one load.
        load_bytes [B]: Size of that load. The 32 lanes of the warp read consecutive addresses.
        outputs_of_lane, inputs_of_lane [index]: Rows and columns of its weights in the instruction: b0, b1, b2, b3.
        nibbles_of_lane [index]: Nibbles of these weights, in its word of the instruction.
        map: Lane, word and nibble of each weight of the instruction: one line per input, one column per output.
        scales_of_lane [index]: Outputs whose scales the lane loads together, with one scale per group of inputs.
        scales_of_sums [index]: Outputs whose scales it loads together, with one scale per output.
        tiles
        is_round_trip: Whether unpacking gives the packed weights back.
    """
    import torch

    num_tiles = rows * columns // (_marlin.TILE_N * _marlin.TILE_K)
    if tile >= num_tiles:
        raise BadArguments(f"the matrix has {num_tiles} tiles, from 0 to {num_tiles - 1}; got {tile}")
    weights, _ = _weight_numbers(_marlin.pack, rows, columns)
    first = _marlin.WORDS * tile
    places = {}
    for index in range(8 * first, 8 * (first + _marlin.WORDS)):
        place = _marlin.place_of(index // 8, index % 8, rows)
        assert (place.row, place.column) == divmod(int(weights[index]), columns)
        if place.instruction == instruction:
            places[place.column, place.row] = index, place.lane
    own = sorted((k, n) for (k, n), (_, holder) in places.items() if holder == lane)
    numbers = torch.arange(rows)
    by_group = _marlin.permute_scales(torch.stack([numbers, numbers], 1))[0]
    by_output = _marlin.permute_scales(numbers[:, None])[0]
    start = _marlin.TILE_N * (tile % (rows // _marlin.TILE_N))
    steps = (torch.arange(rows * columns) * 7 % 16).to(torch.uint8).view(rows, columns)
    return Result(
        words_of_lane=[first + 4 * lane + word for word in range(4)],
        load_bytes=16,
        outputs_of_lane=[n for _, n in own],
        inputs_of_lane=[k for k, _ in own],
        nibbles_of_lane=[places[position][0] % 8 for position in own],
        map=_drawn(places),
        scales_of_lane=by_group[start + 8 * (lane // 4) :][:8].tolist(),
        scales_of_sums=by_output[start + 8 * (lane % 4) :][:8].tolist(),
        tiles=num_tiles,
        is_round_trip=_marlin.unpack(_marlin.pack(steps), rows, columns).equal(steps),
    )


def _drawn(places: dict[tuple[int, int], tuple[int, int]]) -> str:
    """Draw lane, word and nibble of the weights. places: (input, output) -> (nibble of the tensor, lane)."""
    inputs, outputs = (sorted({position[axis] for position in places}) for axis in (0, 1))
    lines = ["", "input | lane word.nibble of outputs " + ", ".join(map(str, outputs))]
    for k in inputs:
        cells = [(places[k, n][1], *divmod(places[k, n][0], 8)) for n in outputs]
        lines.append(f"{k:5} | " + "  ".join(f"{lane:2} {word:3}.{nibble}" for lane, word, nibble in cells))
    return "\n".join(lines)


def _weight_numbers(pack: Callable[[Any], Any], rows: int, columns: int) -> tuple[Any, tuple[int, ...]]:
    """Return the number of the weight in every nibble of the packed matrix, int64 [rows * columns], and its shape."""
    import torch

    numbers = torch.arange(rows * columns).view(rows, columns)
    decoded, shape = torch.zeros(rows * columns, dtype=torch.long), ()
    for bit in range(int(rows * columns - 1).bit_length()):
        packed = pack((numbers >> bit & 1).to(torch.uint8))
        shape = tuple(packed.shape)
        decoded += _nibbles(packed).long() << bit
    return decoded, shape


def _nibbles(packed: Any) -> Any:
    """Return the nibbles of a contiguous tensor, the lowest bits of each element first."""
    import torch

    flat = packed.contiguous().flatten().long()
    bits = 8 * packed.element_size()
    return ((flat[:, None] >> torch.arange(0, bits, 4)) & 15).flatten()
