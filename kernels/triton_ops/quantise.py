"""Rounding to int8 and to fp8, as integer arithmetic and exact division: the same bits on every device.

Triton's own cast to fp8 needs sm_89, and its interpreter gets the cast wrong where a carry leaves the mantissa. Both
conversions are short enough to write out.

e4m3fn: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, 0x7f is NaN, the largest number is 448.

                  s eeeeeeee mmm mmmmmmmmmmmmmmmmmmmm     fp32, bias 127
                  s     eeee mmm                          e4m3, bias 7

  normal      drop 20 bits of mantissa with round-half-even: add 0x7ffff + (the last bit that stays), shift;
              a carry runs into the exponent by itself; then the bias changes by 120 << 3
  subnormal   |x| < 2^-6 is a multiple of 2^-9. fp32 numbers near 2^14 are 2^-9 apart, so |x| + 2^14 is
              rounded to it by the adder, and the difference of the bit patterns is the multiple

Source: Micikevicius et al. 2022, FP8 Formats for Deep Learning.
"""

from __future__ import annotations

import triton
import triton.language as tl

E4M3_MAX = tl.constexpr(448.0)
_HALF_EVEN = tl.constexpr(12582912.0)  # 1.5 * 2^23, where fp32 numbers are 1 apart
_SUBNORMAL = tl.constexpr(16384.0)  # 2^14
_SUBNORMAL_BITS = tl.constexpr(0x46800000)
_SMALLEST_NORMAL_BITS = tl.constexpr(0x3C800000)  # 2^-6
_INFINITY_BITS = tl.constexpr(0x7F800000)


@triton.jit
def scale_of_row(x, k, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """max|x| / LARGEST of k numbers; NaN if there is one, which `maximum` drops on a GPU and the row must keep."""
    columns = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    has_nan = tl.zeros([BLOCK], tl.int32)
    for start in range(0, k, BLOCK):
        values = tl.load(x + start + columns, mask=columns < k - start, other=0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(values))
        has_nan |= (values != values).to(tl.int32)
    return tl.where(tl.max(has_nan, 0) > 0, float("nan"), tl.div_rn(tl.max(largest, 0), LARGEST))


@triton.jit
def round_half_even(x):
    """fp32 with |x| < 2^22 to the nearest integer, still fp32."""
    return (x + _HALF_EVEN) - _HALF_EVEN


@triton.jit
def to_e4m3(x):
    """The bits (uint8) of fp32 x as float8_e4m3fn; beyond +-448 it saturates, NaN stays NaN."""
    clamped = tl.minimum(tl.maximum(x, -E4M3_MAX), E4M3_MAX)
    bits = clamped.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    subnormal = (tl.abs(clamped) + _SUBNORMAL).to(tl.int32, bitcast=True) - _SUBNORMAL_BITS
    encoded = tl.where(magnitude < _SMALLEST_NORMAL_BITS, subnormal, normal) | ((bits >> 24) & 0x80)
    is_nan = (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) > _INFINITY_BITS
    return tl.where(is_nan, 0x7F, encoded).to(tl.uint8)
