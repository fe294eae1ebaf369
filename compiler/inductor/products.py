"""Products with a weight, in the form that Inductor turns into the fastest loop on a CPU.

A row is multiplied with the weight and summed, `(w.float() * x).sum(-1)`: one pass over the weight with all operands in
float32 registers. Several rows are unrolled and stacked, so that one pass over the weight serves them all. In bf16, on
a CPU that multiplies it, native code of our own (bf16_products.py) is faster up to 16 rows; beyond some rows the
library's matrix product wins. `product_form` decides, by the table of benchmarks/product_forms.py.

Shape letters: n rows, K inputs, N outputs.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from compiler.inductor import bf16_products
from compiler.inductor.realize import realize

ProductForm = Literal["multiply_sum", "matmul", "native"]

MAX_UNROLLED_ROWS = 8  # measured up to here; every row more is one more loop body to compile
LARGE_WEIGHT_BYTES = 8 << 20
CACHED_WEIGHT_BYTES = 32 << 20  # what a last level cache holds; beyond it a weight read twice is fetched twice
MAX_LOOP_PRODUCTS = 4 << 20  # of activations with activations, per row; above it a library call pays


def product_form(
    *,
    num_rows: int,
    dtype: torch.dtype,
    weight_bytes: int,
    multiplies_bf16: bool | None = None,
    has_native: bool | None = None,
) -> ProductForm:
    """Return the faster form.

    In bf16, one thread of an EPYC with AVX512-BF16, microseconds as multiply_sum / matmul / native, the first two by
    benchmarks/product_forms.py and native by calls of the product alone, in another run:

        weight            1 row                  4 rows                 8 rows
        2048 x 2048       238 / 405 / 117        572 / 480 / 158        1513 / 707 / 330
        16384 x 2048      2432 / 10003 / 2925    9747 / 6205 / 3224     16899 / 6944 / 4124

    One row of a weight from memory is dearer natively on one thread, and at the memory's rate on two; it is native all
    the same, so that a row has one result in any company. Without native products multiply_sum wins up to 2 rows at
    every size; from 4 on matmul does for a large weight, which on a CPU without products of bf16 it never does (up to
    8 rows, 1.2 to 3.6 times, 2 vCPU Xeon 2.0 GHz, AVX512). Weights of 1 to 8 MB stay with multiply_sum there: matmul
    gains a quarter at 4 rows, and a row's bits would hang on the rows beside it. In float32 neither wins throughout.

    multiplies_bf16: whether the CPU has products of bf16; has_native: whether bf16_products.py may be called. None asks
    this CPU.
    """
    if has_native is None:
        has_native = bf16_products.are_available()
    if has_native and dtype == torch.bfloat16 and num_rows <= bf16_products.MAX_ROWS:
        return "native"
    if num_rows > MAX_UNROLLED_ROWS:
        return "matmul"
    if num_rows > 2 and dtype != torch.float32 and weight_bytes > LARGE_WEIGHT_BYTES:
        has_it = _multiplies_bf16() if multiplies_bf16 is None else multiplies_bf16
        return "matmul" if has_it else "multiply_sum"
    return "multiply_sum"


def _multiplies_bf16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) is True for name in ("avx512_bf16", "amx_bf16", "bf16"))


def product(x_nK: Tensor, weight_NK: Tensor) -> Tensor:
    """Return x @ weight.T [n, N], accumulated in float32 and rounded once to x's dtype."""
    form = product_form(num_rows=x_nK.shape[0], dtype=weight_NK.dtype, weight_bytes=weight_NK.nbytes)
    if form == "native":
        return bf16_products.bf16_product(x_nK, weight_NK)
    if form == "matmul":
        return functional.linear(x_nK, weight_NK)
    wide = realize(x_nK)
    rows = [(weight_NK.float() * wide[row]).sum(-1) for row in range(x_nK.shape[0])]
    return torch.stack(rows).to(x_nK.dtype)
