"""Products of bf16 in native code: against float64, against each row alone, and at the edges of its memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from compiler.inductor import bf16_products
from compiler.inductor.products import MAX_UNROLLED_ROWS, product_form
from compiler.inductor.toolchain import cxx_compiler
from tests.support.node_cases import same_bits
from tests.support.shared_build import shared_build

needs_instructions = pytest.mark.skipif(
    not bf16_products.are_available(), reason="needs a CPU and a C++ compiler with AVX512-BF16"
)
SHAPES = [(1, 1), (7, 33), (3, 31), (4, 32), (64, 64), (33, 257), (130, 1000), (257, 2047)]  # outputs, inputs
GUARD = 64  # elements past the end that no call may touch

Call = Callable[..., Tensor]


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """The code of packages, alone: [p, N] of x [n, K] and weights [E, N, K], through experts or the only one."""

    def build(path: Path) -> None:
        partial = path.with_name(f"{path.name}.partial")
        partial.mkdir()
        command = [cxx_compiler(), "-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
        include = f"-I{Path(torch.__file__).parent / 'include'}"
        subprocess.run([*command, include, bf16_products.SOURCE, "-o", partial / "products.so"], check=True)
        partial.rename(path)

    library = ctypes.CDLL(str(shared_build(tmp_path_factory, "bf16_products", build) / "products.so"))
    library.draft_bf16_products.argtypes = [*[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 6]

    def call(x: Tensor, weights: Tensor, expert: Tensor | None = None, *, num_threads: int = 1) -> Tensor:
        pairs, outputs = x.shape[0] if expert is None else expert.shape[0], weights.shape[-2]
        memory = torch.full((pairs * outputs + GUARD,), float("nan"), dtype=torch.bfloat16)
        sizes = (pairs, x.shape[0], outputs, x.shape[1], 1 if expert is None else weights.shape[0], num_threads)
        ids = None if expert is None else expert.data_ptr()
        code = library.draft_bf16_products(memory.data_ptr(), x.data_ptr(), ids, weights.data_ptr(), *sizes)
        if code != 0:
            raise ValueError("refused")
        assert same_bits(memory[-GUARD:], torch.full((GUARD,), float("nan"), dtype=torch.bfloat16))
        return memory[:-GUARD].view(pairs, outputs)

    return call


def random_bf16(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


@needs_instructions
@pytest.mark.parametrize("outputs, inputs", SHAPES)
@pytest.mark.parametrize("num_rows", [*range(1, 18), 40])
def test_product_is_the_truth_rounded_once(native: Call, num_rows: int, outputs: int, inputs: int) -> None:
    x, weight = random_bf16(num_rows, inputs), random_bf16(outputs, inputs, seed=1)
    truth = x.double() @ weight.double().T
    got = native(x, weight)
    # half a step of bf16, and what a sum in float32 loses of its terms
    slack = x.double().abs() @ weight.double().abs().T * 2**-21
    assert ((got.double() - truth).abs() <= truth.abs() * 2**-8 + slack).all()
    eager = functional.linear(x, weight)
    assert (got.double() - truth).norm() <= 1.02 * (eager.double() - truth).norm() + slack.norm()


@needs_instructions
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("outputs, inputs", [(33, 257), (2100, 700)])
def test_row_has_the_same_bits_whatever_rows_and_threads_are_beside_it(
    native: Call, outputs: int, inputs: int, num_threads: int
) -> None:
    x, weight = random_bf16(17, inputs), random_bf16(outputs, inputs, seed=1)
    alone = torch.cat([native(x[row : row + 1], weight) for row in range(17)])
    for num_rows in range(1, 18):
        assert same_bits(native(x[:num_rows], weight, num_threads=num_threads), alone[:num_rows]), num_rows


@needs_instructions
def test_experts_are_products_of_each_pair_and_unnamed_ones_never_matter(native: Call) -> None:
    weights = random_bf16(9, 77, 45)
    weights[[2, 5]] = float("nan")
    expert = torch.tensor([0, 3, 8, 3, 4, 8, 0, 3, 1, 8, 6, 7])
    x = random_bf16(4, 45, seed=1)
    expected = torch.cat([native(x[pair // 3 : pair // 3 + 1], weights[number]) for pair, number in enumerate(expert)])
    for num_threads in (1, 3):
        assert same_bits(native(x, weights, expert, num_threads=num_threads), expected)
    own = random_bf16(12, 45, seed=2)
    expected = torch.cat([native(own[pair : pair + 1], weights[number]) for pair, number in enumerate(expert)])
    assert same_bits(native(own, weights, expert), expected)


@needs_instructions
@pytest.mark.parametrize("number", [-1, 9])
def test_expert_that_is_not_there_is_refused(native: Call, number: int) -> None:
    with pytest.raises(ValueError, match="refused"):
        native(random_bf16(1, 45), random_bf16(9, 77, 45), torch.tensor([number]))


@needs_instructions
def test_nan_shows_in_its_row_and_output_only(native: Call) -> None:
    x, weight = random_bf16(5, 63), random_bf16(9, 63, seed=1)
    x[1, 62], weight[4, 0] = float("nan"), float("nan")
    got = native(x, weight)
    expected = torch.zeros(5, 9, dtype=torch.bool)
    expected[1], expected[:, 4] = True, True
    assert torch.equal(got.isnan(), expected)


@needs_instructions
def test_infinities_pass_and_large_sums_overflow_as_they_should(native: Call) -> None:
    x, weight = torch.ones(1, 40).bfloat16(), torch.ones(4, 40).bfloat16()
    weight[0, 39], weight[1, 0], weight[2] = float("inf"), float("-inf"), 3e38
    assert native(x, weight).tolist() == [[float("inf"), float("-inf"), float("inf"), 40.0]]


@needs_instructions
def test_subnormal_numbers_count_as_zero(native: Call) -> None:
    tiny = torch.finfo(torch.bfloat16).tiny
    x = torch.tensor([[tiny / 2, 1.0, 0.0], [tiny, 1.0, 0.0]]).bfloat16()
    weight = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]).bfloat16()
    assert native(x, weight).tolist() == [[0.0, 1.0], [tiny, 1.0]]


@needs_instructions
@pytest.mark.parametrize("outputs, inputs", [(1, 1), (5, 33), (6, 31), (7, 64)])
def test_nothing_is_read_past_the_end_of_its_memory(native: Call, outputs: int, inputs: int) -> None:
    """In a process of its own, with memory behind the operands that ends a process which touches it."""
    x, weight = before_guarded_page(random_bf16(3, inputs)), before_guarded_page(random_bf16(outputs, inputs))
    child = os.fork()
    if child == 0:
        native(x, weight)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def before_guarded_page(tensor: Tensor) -> Tensor:
    """A copy of the tensor whose last byte is followed by a page that nobody may read."""
    size = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    region = mmap.mmap(-1, size + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(start + size), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    memory = torch.frombuffer(region, dtype=torch.bfloat16, count=tensor.numel(), offset=size - tensor.nbytes)
    return memory.copy_(tensor.flatten()).view(tensor.shape)


def test_native_form_is_for_a_few_rows_of_bf16_where_it_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    def form(num_rows: int, dtype: torch.dtype = torch.bfloat16, **asked: bool) -> str:
        return product_form(num_rows=num_rows, dtype=dtype, weight_bytes=64 << 20, multiplies_bf16=True, **asked)

    assert [form(num_rows, has_native=True) for num_rows in (1, 16, 17)] == ["native", "native", "matmul"]
    assert [form(num_rows, has_native=False) for num_rows in (1, 2, 4)] == ["multiply_sum", "multiply_sum", "matmul"]
    assert form(4, torch.float32, has_native=True) == "multiply_sum"
    assert form(MAX_UNROLLED_ROWS + 1, torch.float32, has_native=True) == "matmul"
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": False})
    assert form(4) == "matmul"


@needs_instructions
def test_native_form_is_switched_off_inside_the_switch_only() -> None:
    with bf16_products.bf16_products(is_on=False):
        assert not bf16_products.are_available()
    assert bf16_products.are_available()


def test_eager_operators_are_their_references() -> None:
    x, weights, expert = random_bf16(2, 45), random_bf16(5, 7, 45, seed=1), torch.tensor([4, 0, 0, 2])
    assert same_bits(bf16_products.bf16_product(x, weights[3]), functional.linear(x, weights[3]))
    got = bf16_products.bf16_expert_product(x, expert, weights)
    for pair, number in enumerate(expert):
        exact = weights[number].double() @ x[pair // 2].double()
        assert torch.allclose(got[pair].double(), exact, rtol=2**-7, atol=1e-2)


@pytest.mark.slow
@needs_instructions
@pytest.mark.parametrize("cpp_wrapper", [True, False])
def test_compiled_product_takes_rows_that_do_not_lie_in_order(native: Call, cpp_wrapper: bool) -> None:
    """In a package, and in code that Python runs, which has only the reference."""
    x, weights = random_bf16(130, 6), random_bf16(5, 33, 65, seed=1)
    expert = torch.tensor([4, 0, 3])

    def run(x: Tensor, weights: Tensor, expert: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.T[1::2, ::2] * 2
        return bf16_products.bf16_product(rows, weights[1]), bf16_products.bf16_expert_product(
            x.T[1::2, ::2], expert, weights
        )

    got = torch.compile(run, fullgraph=True, options={"cpp_wrapper": cpp_wrapper})(x, weights, expert)
    rows = x.T[1::2, ::2].contiguous()
    expected = native(rows * 2, weights[1]), native(rows, weights, expert)
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.allclose(ours.double(), theirs.double(), rtol=2**-7, atol=1e-2)
        assert same_bits(ours, theirs) or not cpp_wrapper
