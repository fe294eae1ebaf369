"""What every kernel family shares: matrix products and roundings that hold on a GPU and under the interpreter.

The interpreter computes bf16 products on raw bits, and its casts to bf16 truncate; both go through here instead. It is
judged in float32, where neither matters, and stays close in bf16.
"""

import triton
import triton.language as tl

# read when the module is imported, as the decorators do: TRITON_INTERPRET is set before or not at all
IS_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def dot(a, b, acc):
    """acc + a @ b in float32; float32 operands are not rounded to tf32."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Round float32 to `dtype`, nearest even, and return it in `dtype`."""
    if IS_INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        even = bits + 0x7FFF + ((bits >> 16) & 1)
        # a NaN keeps its upper bits, which the sum could carry into infinity or zero
        kept = tl.where(x != x, bits | 0x400000, even) & 0xFFFF0000
        return kept.to(tl.float32, bitcast=True).to(tl.bfloat16)
    return x.to(dtype)


@triton.jit
def widened(x, dtype: tl.constexpr):
    """Return int8 in a float dtype; every model dtype holds all its values."""
    if IS_INTERPRETED:
        return rounded(x.to(tl.float32), dtype)
    return x.to(dtype)


@triton.jit
def through(x, dtype: tl.constexpr):
    """Round float32 to `dtype` and widen it again: a rounding point of a reference, kept in float32."""
    return rounded(x, dtype).to(tl.float32)


@triton.jit
def ordered_bits(x):
    """Map float32 to uint32 that sorts alike, NaN of either sign above infinity."""
    bits = x.to(tl.uint32, bitcast=True)
    is_negative = (bits >> 31) == 1
    flipped = tl.where(is_negative, ~bits, bits | 0x80000000)
    return tl.where(x != x, 0xFFFFFFFF, flipped).to(tl.uint32)


@triton.jit
def packed(x, index):
    """Pack scores and int32 indices into uint64 whose largest is the best score, the lowest index among equals."""
    inverted = (~index).to(tl.uint32, bitcast=True)
    return (ordered_bits(x).to(tl.uint64) << 32) | inverted.to(tl.uint64)


@triton.jit
def packed_index(key):
    """Return the index that `packed` put into a key."""
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    return ~(low.to(tl.int32, bitcast=True))
