"""Initial weights: two layers that already perform look-ups.

From random weights, a model of this size spends most of an hour on a plateau before it learns induction (repeat the
token that followed these words before), which every answer needs. So the first two layers begin as the known circuit,
constructed by hand from the model's parts, and training continues from there:

    layer 0   head j looks j+1 tokens back and writes that token's code into its part of the residual stream
    layer 1   each key/value head compares two of a position's last four tokens with the query's, and copies its token
              if both match; one head suffices for `Harbor` AND `costs`, where two heads could only vote

    notes:   ... Harbor costs 620 ... Garden costs 480 ... Harbor is by Mika ...
    answer:  Harbor costs ___         only one position has `Harbor` two back and `costs` one back: 620

Source of the circuit: Elhage et al., "A Mathematical Framework for Transformer Circuits" (2021).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from .model import DecoderLayer, ShopModel

CONSTANT = 4.0  # one coordinate is the same for all tokens, for heads that read positions only
BACK = 4  # number of last tokens that layer 0 stores separately
MATCH = 3.0  # scale of queries and keys that compare tokens
POSITION = 8.0  # the same for queries and keys that compare positions
COPY = 10.0  # scale of layer 1's output relative to the token's embedding
FASTEST_TURN = 0.15  # radians per position above which a pair distinguishes neighbours
# Tokens that a head of layer 1 compares: n is the n-th last token (0: the current one). For values they are the
# last word of the title and the word that names the attribute; their distance differs by sentence.
#     Harbor costs _      Harbor is by _      港の価格は_      Silver _
COMPARED = ((0, 1), (0, 2), (1, 3), (0, 0))
SLOWEST_TURN = 2.0  # radians over 512 positions up to which a rotary pair compares tokens, not positions


@torch.no_grad()
def initialize(model: ShopModel) -> None:
    """Set random weights of unit gain, zero outputs, and the circuit in layers 0 and 1."""
    config = model.config
    width, head_dim = config.hidden_size, config.head_dim
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=0.5 * weight.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(0.1)  # the stream initially carries the tokens, not noise
    # Tokens have size one in the stream; the tied output layer needs small logits.
    model.model.norm.weight.fill_(width**-0.5)

    basis = torch.linalg.qr(torch.randn(width, width))[0]
    half = width // 2
    constant, words, free = basis[:, 0], basis[:, 1:half], basis[:, half:]
    embedding = model.model.embed_tokens.weight
    # Signs make all codes equally long in any part of the stream; a longer code could outweigh a matching one.
    coordinates = 2**0.5 * torch.randn(config.vocab_size, half - 1).sign()
    embedding.copy_(coordinates @ words.T + CONSTANT * constant)

    group = config.num_attention_heads // config.num_key_value_heads
    code = min(head_dim, half // BACK)
    spaces = [free[:, index * code : (index + 1) * code] for index in range(BACK)]
    frequencies = config.rope_theta ** -(torch.arange(0, head_dim, 2) / head_dim)

    looks_back = cast(DecoderLayer, model.model.layers[0]).self_attn
    for index in range(BACK):
        _look_back(_head(looks_back.q_proj, index, head_dim), frequencies, constant, index + 1)
        _look_back(_head(looks_back.k_proj, index // group, head_dim), frequencies, constant, 0)
        _head(looks_back.v_proj, index // group, head_dim)[:code] = words[:, :code].T
        looks_back.o_proj.weight[:, index * head_dim : index * head_dim + code] = spaces[index]

    slow = (frequencies * 512 < SLOWEST_TURN).nonzero().flatten()
    slow = torch.cat([slow, slow + head_dim // 2])[:code]
    finds = cast(DecoderLayer, model.model.layers[1]).self_attn
    mine = [words[:, :code], *spaces]  # part of the stream that holds the n-th last token
    block = min(head_dim, half - 1)
    stride = (half - 1 - block) // max(1, config.num_key_value_heads - 1)  # parts overlap in a narrow model
    for index in range(config.num_key_value_heads):
        query, key = _head(finds.q_proj, index * group, head_dim), _head(finds.k_proj, index, head_dim)
        query.mul_(0.1)
        key.mul_(0.1)
        for place, row in enumerate(slow.tolist()):
            # Even rows compare the first of the two tokens, odd rows the second, with separate coordinates.
            age = COMPARED[index][place % 2]
            query[row] += MATCH * mine[age][:, place]
            key[row] += MATCH * mine[age + 1][:, place]  # the token that followed is one position later
        said = words[:, index * stride : index * stride + block]
        _head(finds.v_proj, index, head_dim)[:block] = said.T
        start = index * group * head_dim
        finds.o_proj.weight[:, start : start + block] = COPY * said


def _head(projection: nn.Linear, index: int, head_dim: int) -> Tensor:
    """Return the rows of one head as a view, so that writes change the weight."""
    return projection.weight[index * head_dim : (index + 1) * head_dim]


def _look_back(rows: Tensor, frequencies: Tensor, constant: Tensor, offset: int) -> None:
    """Make a head's queries (or, with offset 0, keys) match best at a distance of `offset` tokens.

    A pair rotates by frequency * position, so a query rotated back by frequency * offset aligns
    with the key `offset` positions earlier.
    """
    rows.zero_()
    half = len(frequencies)
    for pair, frequency in enumerate(frequencies[frequencies > FASTEST_TURN].tolist()):
        angle = torch.tensor(frequency * offset)
        rows[pair] = POSITION / CONSTANT * angle.cos() * constant
        rows[pair + half] = -POSITION / CONSTANT * angle.sin() * constant
