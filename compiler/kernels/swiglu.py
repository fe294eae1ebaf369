"""The clamped gated activation, for the ends of products of joined gate and up weights."""

import triton
import triton.language as tl

from compiler.kernels.numerics import through


@triton.jit
def gate_up_rows(first, INTER: tl.constexpr, BLOCK_R: tl.constexpr):
    """Return which outputs, and which rows of a joined weight, BLOCK_R rows are: gate and up of one output in turn."""
    row = tl.arange(0, BLOCK_R)
    inner = first + row // 2
    return inner, inner + (row % 2) * INTER


@triton.jit
def clamped_swiglu(product, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """silu(min(gate, limit)) * clamp(up, -limit, limit) of products [2 * d, m] whose gate and up rows take turns.

    Float32 [d, m], not yet rounded to `dtype`; the products, the clamps and silu are. NaN stays NaN.
    """
    pairs: tl.constexpr = product.shape[0] // 2
    turned = product.reshape(pairs, 2, product.shape[1]).permute(0, 2, 1)
    gate, up = tl.split(through(turned, dtype))
    limit = through(tl.full(gate.shape, LIMIT, tl.float32), dtype)
    # comparisons rather than minimum, which drops a NaN
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return through(gate / (1.0 + tl.exp(-gate)), dtype) * up
