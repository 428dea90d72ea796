"""Where training starts: two layers that already copy.

Left to itself, a model of this size spends most of an hour on a plateau before it finds induction ("what came after
these words last time?"), and everything the shop does is built on that. So the first two layers begin as the known
circuit, built by hand from the model's own parts, and training goes on from there:

    layer 0   head j looks j+1 tokens back and writes that token's code into its own part of the residual stream
    layer 1   key/value head j finds the places whose token j+1 back is my token j back, and adds what stands there

    ... Harbor costs 620 ...   Harbor costs ___     head 0: after "costs"; head 1: two after "Harbor"; both say 620

Source of the circuit: Elhage et al., "A Mathematical Framework for Transformer Circuits" (2021).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .model import ShopModel

CONSTANT = 4.0  # one coordinate is the same for all tokens: what a head that only counts positions reads
MATCH = 1.7  # scale of queries and keys that compare tokens
POSITION = 8.0  # the same for those that compare positions
COPY = 4.0  # how loudly layer 1 says what it found, against the token's own embedding
FASTEST_TURN = 0.15  # radians from one position to the next above which a pair tells neighbours apart
SLOWEST_TURN = 2.0  # radians over 512 positions up to which a rotary pair still compares tokens and not places


@torch.no_grad()
def initialize(model: ShopModel) -> None:
    """Random weights of unit gain, silent outputs, and the circuit in layers 0 and 1."""
    config = model.config
    width, head_dim = config.hidden_size, config.head_dim
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=0.5 * weight.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(0.1)  # at first the stream carries the tokens, not noise
    # The stream has tokens of size one in it; the tied output layer wants small logits.
    model.model.norm.weight.fill_(0.5 * width**-0.5)

    basis = torch.linalg.qr(torch.randn(width, width))[0]
    half = width // 2
    constant, words, free = basis[:, 0], basis[:, 1:half], basis[:, half:]
    embedding = model.model.embed_tokens.weight
    # All tokens equally long, or a loud token would outshout a near one in the heads that compare positions.
    coordinates = nn.functional.normalize(torch.randn(config.vocab_size, half - 1)) * width**0.5
    embedding.copy_(coordinates @ words.T + CONSTANT * constant)

    offsets = config.num_key_value_heads
    group = config.num_attention_heads // config.num_key_value_heads
    code = min(head_dim, half // offsets)
    spaces = [free[:, index * code : (index + 1) * code] for index in range(offsets)]
    frequencies = config.rope_theta ** -(torch.arange(0, head_dim, 2) / head_dim)

    looks_back = model.model.layers[0].self_attn
    for index in range(offsets):
        _look_back(_head(looks_back.q_proj, index, head_dim), frequencies, constant, index + 1)
        _look_back(_head(looks_back.k_proj, index // group, head_dim), frequencies, constant, 0)
        _head(looks_back.v_proj, index // group, head_dim)[:code] = words[:, :code].T
        looks_back.o_proj.weight[:, index * head_dim : index * head_dim + code] = spaces[index]

    slow = (frequencies * 512 < SLOWEST_TURN).nonzero().flatten()
    slow = torch.cat([slow, slow + head_dim // 2])[:code]
    finds = model.model.layers[1].self_attn
    sources = [words[:, :code], *spaces[:-1]]
    block = min(head_dim, (half - 1) // offsets)
    for index in range(offsets):
        query, key = _head(finds.q_proj, index * group, head_dim), _head(finds.k_proj, index, head_dim)
        query.mul_(0.1)
        key.mul_(0.1)
        query[slow] += MATCH * sources[index][:, : len(slow)].T
        key[slow] += MATCH * spaces[index][:, : len(slow)].T
        said = words[:, index * block : (index + 1) * block]
        _head(finds.v_proj, index, head_dim)[:block] = said.T
        start = index * group * head_dim
        finds.o_proj.weight[:, start : start + block] = COPY * said


def _head(projection: nn.Linear, index: int, head_dim: int) -> Tensor:
    """The rows of one head: a view, so writing to it writes the weight."""
    return projection.weight[index * head_dim : (index + 1) * head_dim]


def _look_back(rows: Tensor, frequencies: Tensor, constant: Tensor, offset: int) -> None:
    """Make a head's queries (or, with offset 0, keys) agree most at a distance of `offset` tokens.

    The rotary turn of a pair is frequency * position, so a query that starts turned back by frequency * offset lines
    up with the key that stands `offset` places earlier.
    """
    rows.zero_()
    half = len(frequencies)
    for pair, frequency in enumerate(frequencies[frequencies > FASTEST_TURN].tolist()):
        angle = torch.tensor(frequency * offset)
        rows[pair] = POSITION / CONSTANT * angle.cos() * constant
        rows[pair + half] = -POSITION / CONSTANT * angle.sin() * constant
