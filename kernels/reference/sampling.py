"""From logits to one token per row, by sorting: what the pivot searches of the fast versions must agree with.

    x = (logit - peak) / temperature
    floor = the highest of what min_p, top_k and top_p ask for          tokens under the floor are out
    token = argmax over the rest of x + noise                          = a sample of softmax(x), Gumbel-max

A floor is a value, not a place in an order: tokens with equal logits share their fate, and no order among them has
to be invented. The noise is a hash of (the row's key, token id), so nothing else has a part in the choice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.precision import wide

TOKEN_STRIDE = 0x9E3779B1
MURMUR_1 = 0x85EBCA6B
MURMUR_2 = 0xC2B2AE35
UNIFORM_SCALE = 2**-32 * (1 - 2**-24)
"""Maps hash + 0.5 to a float32 in (0, 1), both ends excluded even after rounding."""
_LOW_32_BITS = 0xFFFFFFFF


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    if not logits.shape[0]:
        return logits.new_empty(0, dtype=torch.int64), logits.new_empty(0)
    greedy = logits.argmax(-1)  # the lowest id of equals; a NaN counts as the highest
    peaks = logits.gather(-1, greedy[:, None])
    random = temperature > 0
    # Relative to the row's peak nothing can overflow, however small the temperature.
    x = (wide(logits) - peaks) / torch.where(random, temperature, 1.0)[:, None]
    x = x.masked_fill(x < floor_of(x, top_k, top_p, min_p), -torch.inf)
    drawn = (x + gumbel_noise(keys, logits.shape[1])).argmax(-1)
    return torch.where(random, drawn, greedy), peaks.squeeze(-1)


def floor_of(x: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The lowest x that min_p, then top_k, then top_p among the survivors, let through: [S, 1].

    x [S, V] with a peak of 0 in each row.
    """
    min_p_floor = min_p.to(x.dtype).log()[:, None]
    ranked = x.masked_fill(x < min_p_floor, -torch.inf).sort(-1, descending=True).values
    top_k_floor = ranked.gather(-1, top_k[:, None].long() - 1)
    ranked = ranked.masked_fill(ranked < top_k_floor, -torch.inf)
    mass = ranked.double().softmax(-1).cumsum(-1)
    # The token that crosses p is the first whose mass reaches it, and it stays.
    crossing = (mass < top_p[:, None]).sum(-1, keepdim=True).clamp(max=x.shape[-1] - 1)
    top_p_floor = ranked.gather(-1, crossing).masked_fill(top_p[:, None] >= 1.0, -torch.inf)
    return torch.maximum(torch.maximum(min_p_floor, top_k_floor), top_p_floor)


def gumbel_noise(keys: Tensor, vocab_size: int) -> Tensor:
    """Gumbel noise for every token of every row: int32 or uint32 [S, 2] -> fp32 [S, V].

    Values lie in [-2.9, 23]: the largest has a probability of 2**-33. The two logarithms may round
    differently elsewhere; the bits they are taken of may not.
    """
    return gumbel_from_bits(noise_bits(keys, vocab_size))


def noise_bits(keys: Tensor, vocab_size: int) -> Tensor:
    """The 32 random bits of every token of every row: int64 [S, V], 0 to 2**32 - 1.

    The finaliser of murmur3 (Appleby 2011), with the second half of the key added in its middle.
    """
    first, second = (keys.view(torch.int32).long() & _LOW_32_BITS).split(1, dim=-1)
    tokens = torch.arange(vocab_size, device=keys.device)
    bits = first ^ _low_product(tokens, TOKEN_STRIDE)
    bits = _low_product(bits ^ (bits >> 16), MURMUR_1)
    bits = ((bits ^ (bits >> 13)) + second) & _LOW_32_BITS
    bits = _low_product(bits, MURMUR_2)
    return bits ^ (bits >> 16)


def gumbel_from_bits(bits: Tensor) -> Tensor:
    """-log(-log(1 - u)) with u = bits / 2**32, in fp32; log1p keeps small u apart, from which the winners come."""
    u = (bits.float() + 0.5) * UNIFORM_SCALE
    return -(-(-u).log1p()).log()


def _low_product(bits: Tensor, factor: int) -> Tensor:
    """The low 32 bits of a product. int64 wraps around, which leaves them right."""
    return (bits * factor) & _LOW_32_BITS
