"""Marlin's layout of 4-bit weights: every thread finds the operands of its tensor-core instructions in one load.

`mma.m16n8k16` multiplies 16 x 16 activations by 16 x 8 weights [k, n]. PTX fixes which lane of the warp holds which
weight (B fragment), in the four halves b0 to b3 of two registers:

    b0, b1    k = 2 (lane % 4) + 0, 1         n = lane / 4
    b2, b3    k = 2 (lane % 4) + 8, 9         n = lane / 4

    words of 16 inputs x 64 outputs    lane 0: w0 w1 w2 w3 | lane 1: w0 w1 w2 w3 | ... | lane 31: w0 w1 w2 w3
    word j                             outputs 16 j to 16 j + 15: the fragments of two instructions, 8 nibbles
    nibbles 0 and 4, 1 and 5, ...      (b0, b1), (b2, b3) of the first, then of the second instruction

A lane reads its four words with one load of 16 bytes, and the loads of a warp are 512 consecutive bytes. A mask keeps
nibbles i and i + 4 in the two halves of a register: a pair of weights that one instruction turns into two fp16 numbers.

Scales by group lie with the outputs 8 apart side by side, because lane / 4 chooses the output of every fragment. One
scale per output is applied to the sums (C fragment), in which a lane has the outputs 2 (lane % 4) and the next one.

Matrices are [N, K] (outputs, inputs) with N a multiple of 64 and K of 16. Sources: Marlin (Frantar et al. 2024),
section 3.3; PTX ISA, mma.m16n8k16; vLLM model_executor/layers/quantization/utils/marlin_utils.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

TILE_K, TILE_N = 16, 64
"""Inputs and outputs of the block of weights that one warp reads at once: 128 words."""
WORDS = TILE_K * TILE_N // 8


class Place(NamedTuple):
    """The fragment value that one nibble of a word holds."""

    lane: int
    """Lane of the warp that reads the word: 0 to 31."""
    instruction: int
    """Number among the eight `mma` of the tile, by output: outputs 8 i to 8 i + 7."""
    register: str
    """b0 to b3: half of the B fragment."""
    row: int
    """Output, 0 to N - 1."""
    column: int
    """Input, 0 to K - 1."""


def place_of(word: int, nibble: int, rows: int) -> Place:
    """Return the weight in a nibble of a word. word: its number in the packed tensor, row by row."""
    tiles, word = divmod(word, WORDS)
    tile_k, tile_n = divmod(tiles, rows // TILE_N)
    lane, pair = divmod(word, 4)
    value = 2 * (nibble % 4) + nibble // 4  # of the eight of two instructions
    second, half = divmod(value, 4)
    column = TILE_K * tile_k + 2 * (lane % 4) + half % 2 + 8 * (half // 2)
    row = TILE_N * tile_n + 16 * pair + 8 * second + lane // 4
    return Place(lane, 2 * pair + second, f"b{half}", row, column)


def pack(steps: Tensor) -> Tensor:
    """uint8 [N, K] of 0 to 15 -> int32 [K / 16, 2 N]."""
    import torch

    rows, columns = steps.shape
    # n: tile, pair of fragments, fragment, lane / 4; k: tile, b2 and b3, lane % 4, odd
    parts = steps.long().view(rows // TILE_N, 4, 2, 8, columns // TILE_K, 2, 4, 2)
    in_order = parts.permute(4, 0, 3, 6, 1, 7, 2, 5)  # nibble: odd, fragment, b2 and b3, from the highest
    nibbles = in_order.reshape(columns // TILE_K, 2 * rows, 8)
    words = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    return words.to(torch.int32)  # wraps: the sign bit is the highest of nibble 7


def unpack(words: Tensor, rows: int, columns: int) -> Tensor:
    """int32 [K / 16, 2 N] -> uint8 [N, K]."""
    import torch

    nibbles = (words.long()[..., None] >> torch.arange(0, 32, 4)) & 15
    parts = nibbles.view(columns // TILE_K, rows // TILE_N, 8, 4, 4, 2, 2, 2)
    return parts.permute(1, 4, 6, 2, 0, 7, 3, 5).reshape(rows, columns).to(torch.uint8)


def permute_scales(scales: Tensor) -> Tensor:
    """[N, K / G] -> [K / G, N] in the order of the fragments; one group is one scale per output."""
    groups = scales.shape[1]
    parts = scales.T.reshape(groups, -1, *((4, 4, 2) if groups == 1 else (8, 8)))
    return parts.transpose(2, 3).reshape(groups, -1).contiguous()


def restore_scales(permuted: Tensor) -> Tensor:
    """[K / G, N] -> [N, K / G], the inverse of `permute_scales`."""
    groups = permuted.shape[0]
    parts = permuted.reshape(groups, -1, *((4, 4, 2) if groups == 1 else (8, 8)))
    return parts.transpose(2, 3).reshape(groups, -1).T.contiguous()
