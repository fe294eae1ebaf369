"""Products with a weight, in the form that Inductor turns into the fastest loop on a CPU.

A row is multiplied with the weight and summed, `(w.float() * x).sum(-1)`: one pass over the weight with all operands in
float32 registers. Several rows are unrolled and stacked, so that one pass over the weight serves them all. Where the
weight is large and bf16 and there are several rows, or many rows, oneDNN's matrix product wins; `product_form` decides.

Shape letters: n rows, K inputs, N outputs.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from compiler.inductor.realize import realize

ProductForm = Literal["multiply_sum", "matmul"]

MAX_UNROLLED_ROWS = 4  # beyond it the unrolled body spills
LARGE_WEIGHT_BYTES = 8 << 20
CACHED_WEIGHT_BYTES = 32 << 20  # what a last level cache holds; beyond it a weight read twice is fetched twice
MAX_LOOP_PRODUCTS = 4 << 20  # of activations with activations, per row; above it a library call pays


def product_form(*, num_rows: int, dtype: torch.dtype, weight_bytes: int) -> ProductForm:
    """Return the faster form; measured by benchmarks/propose_cpu.py."""
    if num_rows > MAX_UNROLLED_ROWS:
        return "matmul"
    if num_rows > 1 and dtype != torch.float32 and weight_bytes > LARGE_WEIGHT_BYTES:
        return "matmul"
    return "multiply_sum"


def product(x_nK: Tensor, weight_NK: Tensor) -> Tensor:
    """Return x @ weight.T [n, N], accumulated in float32 and rounded once to x's dtype."""
    form = product_form(num_rows=x_nK.shape[0], dtype=weight_NK.dtype, weight_bytes=weight_NK.nbytes)
    if form == "matmul":
        return functional.linear(x_nK, weight_NK)
    wide = realize(x_nK)
    rows = [(weight_NK.float() * wide[row]).sum(-1) for row in range(x_nK.shape[0])]
    return torch.stack(rows).to(x_nK.dtype)
