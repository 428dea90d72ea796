"""Positions of 4-bit weights in the packed layouts of checkpoints, read from the packing code itself."""

from collections.abc import Callable
from typing import Any, Literal

from quizzes.experiments import BadArguments, Result, arg, experiment

Layout = Literal["awq", "gptq", "compressed-tensors", "engine"]


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
    the nibbles of all packed matrices, read together, give the number. Marlin's layout, into which vLLM repacks
    checkpoints for its GPU kernel, is not among them: the engine has no such kernel.

    Returns: Nibbles from the lowest bits to the highest.
        words [words]: In the packed tensor; `word` counts row by row.
        tensor_shape: Of the packed tensor, in its own elements.
        rows_in_word, columns_in_word [index]: Row and column of the weight in each nibble.
        neighbours: outputs, if a word's nibbles belong to one column; inputs, if they belong to one row.
        in_order: Whether they lie in ascending order.
        is_permutation: Whether each weight lies in exactly one nibble of the tensor.
    """
    import torch

    pack = _packers()[layout]
    numbers = torch.arange(rows * columns).view(rows, columns)
    found, shape = torch.zeros(rows * columns, dtype=torch.long), ()
    for bit in range(int(rows * columns - 1).bit_length()):
        packed = pack((numbers >> bit & 1).to(torch.uint8))
        shape = tuple(packed.shape)
        nibbles = _nibbles(packed)
        found += nibbles.long() << bit
    num_words = len(found) // 8
    if word >= num_words:
        raise BadArguments(f"the packed matrix has {num_words} words, from 0 to {num_words - 1}; got {word}")
    inside = found[8 * word : 8 * word + 8]
    rows_in_word, columns_in_word = (inside // columns).tolist(), (inside % columns).tolist()
    is_column = len(set(columns_in_word)) == 1
    varying = rows_in_word if is_column else columns_in_word
    return Result(
        words=num_words,
        tensor_shape=list(shape),
        rows_in_word=rows_in_word,
        columns_in_word=columns_in_word,
        neighbours="outputs" if is_column else "inputs",
        in_order=varying == sorted(varying),
        is_permutation=found.sort().values.equal(torch.arange(rows * columns)),
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
    }


def _nibbles(packed: Any) -> Any:
    """Return the nibbles of a contiguous tensor, the lowest bits of each element first."""
    import torch

    flat = packed.contiguous().flatten().long()
    bits = 8 * packed.element_size()
    return ((flat[:, None] >> torch.arange(0, bits, 4)) & 15).flatten()
