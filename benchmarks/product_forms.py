"""Which form of a product with a weight is faster on this CPU: the table that compiler/inductor/products.py follows.

    python benchmarks/product_forms.py                    # five minutes on two quiet cores
    python benchmarks/product_forms.py --dtype f32 --threads 2

Multiply-and-sum, one pass over the weight with every row unrolled, against the library's matrix product and, in bf16
where the CPU has AVX512-BF16, native code; each compiled by Inductor alone, all taking turns. Figures are medians in
microseconds.
"""

import argparse
import sys
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from compiler.inductor import bf16_products
from compiler.inductor.products import ProductForm, product, product_form
from drafts.benchmark.protocol import time_interleaved

WEIGHTS = ((256, 256), (4096, 256), (2048, 2048), (16384, 2048), (65536, 2048))
ROWS = (1, 2, 4, 8, 16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[arguments.dtype]
    forms: list[ProductForm] = ["multiply_sum", "matmul"]
    if dtype == torch.bfloat16 and bf16_products.are_available():
        forms.append("native")
    print(f"{'weight':<16}{'MB':>7}{'rows':>6}" + "".join(f"{form:>14}" for form in (*forms, "faster", "chosen")))
    for num_outputs, num_inputs in WEIGHTS:
        weight = torch.randn(num_outputs, num_inputs).to(dtype)
        for num_rows in ROWS:
            x = torch.randn(num_rows, num_inputs).to(dtype)
            runs: dict[str, Callable[[], object]] = {form: _compiled(form, x, weight) for form in forms}
            times = {
                form: timing.median_us for form, timing in time_interleaved(runs, seconds=arguments.seconds).items()
            }
            chosen = product_form(num_rows=num_rows, dtype=dtype, weight_bytes=weight.nbytes)
            cells = "".join(f"{times[form]:>14,.0f}" for form in forms)
            faster = min(times, key=times.__getitem__)
            size = f"{num_outputs} x {num_inputs}"
            print(f"{size:<16}{weight.nbytes / 1e6:>7.1f}{num_rows:>6}{cells}{faster:>14}{chosen:>14}", flush=True)
    return 0


def _compiled(form: ProductForm, x: Tensor, weight: Tensor):  # type: ignore[no-untyped-def]
    def run(x: Tensor, weight: Tensor) -> Tensor:
        # a norm before it, as in a head: the form must keep it out of its loop
        return product(x * torch.rsqrt((x * x).mean(-1, keepdim=True)), weight)

    with patch("compiler.inductor.products.product_form", lambda **_: form):
        traced = make_fx(run, tracing_mode="fake")(x, weight)
    # as in a package, calls are C++: only there is native code native
    compiled = torch._inductor.compile(traced, [x, weight], options={"cpp_wrapper": True})
    return lambda: compiled(x, weight)


if __name__ == "__main__":
    sys.exit(main())
