"""Products of a few rows of bf16 with a weight by AVX512-BF16: two operators that packages hold as native code.

Inductor's loops widen bf16 to float32 before they multiply, once per row, and the library's product packs the weight
first: between 2 and 16 rows both take several times as long as reading the weight. bf16_products.cpp reads it once.
It goes into the package that calls it as source, so nothing is loaded beside a package and a package without it lacks
nothing. Run eagerly the operators are their references, sums in whatever order torch takes.

Shape letters: n rows, p pairs of row and expert, E experts, K inputs, N outputs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
from sympy import Expr
from torch import Tensor
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.lowering import fallback_handler, register_lowering
from torch._inductor.utils import parallel_num_threads
from torch._inductor.virtualized import V
from torch.nn import functional

import compiler.inductor.realize  # noqa: F401 - defines the library's namespace
from compiler.inductor.toolchain import compiles_avx512_bf16

SOURCE = Path(__file__).with_name("bf16_products.cpp")
MAX_ROWS = 16  # measured up to here; its time grows with the rows beyond 4, the library's hardly

_is_on: ContextVar[bool] = ContextVar("native bf16 products", default=True)

_library = torch.library.Library("circuit_draft", "FRAGMENT")
_library.define("bf16_product(Tensor x, Tensor weight) -> Tensor")
_library.define("bf16_expert_product(Tensor x, Tensor expert, Tensor weights) -> Tensor")

_SHIMS = {
    "bf16_product": "AtenTensorHandle results, AtenTensorHandle x, AtenTensorHandle weight",
    "bf16_expert_product": (
        "AtenTensorHandle results, AtenTensorHandle x, AtenTensorHandle expert, AtenTensorHandle weights"
    ),
}


def are_available() -> bool:
    """Whether programs traced now may call them.

    The CPU and the C++ compiler have AVX512-BF16, and no `bf16_products(is_on=False)` is around.
    """
    has_it = torch.cpu.get_capabilities().get("avx512_bf16") is True
    return _is_on.get() and has_it and compiles_avx512_bf16()


@contextmanager
def bf16_products(*, is_on: bool) -> Iterator[None]:
    """Let programs traced inside call the operators where the CPU can, or not at all."""
    token = _is_on.set(is_on)
    try:
        yield
    finally:
        _is_on.reset(token)


def bf16_product(x_nK: Tensor, weight_NK: Tensor) -> Tensor:
    """Return x @ weight.T [n, N] of bf16, summed in float32 and rounded once."""
    result: Tensor = torch.ops.circuit_draft.bf16_product(x_nK, weight_NK)
    return result


def bf16_expert_product(x_nK: Tensor, expert_p: Tensor, weights_ENK: Tensor) -> Tensor:
    """Return [p, N] of bf16: pair i is row `i * n // p` of x through expert `expert[i]`, each expert read once.

    `expert` is int64 and names experts that there are; those that no pair names are not read.
    """
    result: Tensor = torch.ops.circuit_draft.bf16_expert_product(x_nK, expert_p, weights_ENK)
    return result


@torch.library.impl(_library, "bf16_product", "CPU")
def _bf16_product(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight)


@torch.library.impl(_library, "bf16_expert_product", "CPU")
def _bf16_expert_product(x: Tensor, expert: Tensor, weights: Tensor) -> Tensor:
    rows = x[torch.arange(len(expert)) * len(x) // len(expert)]
    return torch.matmul(weights[expert], rows.unsqueeze(-1)).squeeze(-1)


@torch.library.register_fake("circuit_draft::bf16_product", lib=_library)  # type: ignore[untyped-decorator]
def _bf16_product_fake(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.register_fake("circuit_draft::bf16_expert_product", lib=_library)  # type: ignore[untyped-decorator]
def _bf16_expert_product_fake(x: Tensor, expert: Tensor, weights: Tensor) -> Tensor:
    return x.new_empty(expert.shape[0], weights.shape[1])


class _NativeCall(ir.ExternKernelOut):
    """A call of native code that stands in the package itself, its result in memory that the package planned."""

    def codegen(self, wrapper: PythonWrapperCodegen) -> None:
        if SOURCE.name not in wrapper.src_to_kernel:
            wrapper.src_to_kernel[SOURCE.name] = SOURCE.stem
            # as a kernel it is compiled with the flags of kernels, which the code of calls is not
            wrapper.define_kernel(
                SOURCE.stem,
                f"#define DRAFT_NUM_THREADS {parallel_num_threads()}\n{SOURCE.read_text(encoding='utf-8')}",
                gpu=False,
                cpp_definition="\n".join(
                    f'extern "C" int32_t {_shim_name(name)}({arguments});' for name, arguments in _SHIMS.items()
                ),
            )
        super().codegen(wrapper)


def _shim_name(name: str) -> str:
    # torch takes a name that begins so for a function of the C interface, called with handles, the result first
    return f"aoti_torch_cpu_draft_{name}"


def _lower(name: str, operands: Sequence[ir.TensorBox], sizes: Sequence[Expr]) -> ir.TensorBox:
    operator = getattr(torch.ops.circuit_draft, name).default
    if not V.graph.cpp_wrapper:
        result: ir.TensorBox = fallback_handler(operator, add_to_fallback_set=False)(*operands)
        return result
    # native code takes whole buffers, rows one after the other
    held = [ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(operand)) for operand in operands]
    layout = ir.FixedLayout(torch.device("cpu"), operands[0].get_dtype(), list(sizes))
    return ir.TensorBox.create(_NativeCall(layout, held, cpp_kernel_name=_shim_name(name), op_overload=operator))


@register_lowering(torch.ops.circuit_draft.bf16_product.default, type_promotion_kind=None)
def _lower_product(x, weight):  # type: ignore[no-untyped-def]
    return _lower("bf16_product", (x, weight), (x.get_size()[0], weight.get_size()[0]))


@register_lowering(torch.ops.circuit_draft.bf16_expert_product.default, type_promotion_kind=None)
def _lower_expert_product(x, expert, weights):  # type: ignore[no-untyped-def]
    return _lower("bf16_expert_product", (x, expert, weights), (expert.get_size()[0], weights.get_size()[1]))
