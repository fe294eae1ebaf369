"""in_proj: the norm of attention's input, and the one product that q_a, kv_a and the indexer's inputs are slices of."""

from math import prod

from compiler.triton.emission import RegionEmission
from compiler.triton.launch import Argument, Constant
from compiler.triton.tiles import FEW_ROWS, RESIDENT_PROGRAMS, SOME_ROWS, cdiv, gemm_tiles, split_tiles
from nodes import RmsNorm


def lower_in_proj(emit: RegionEmission) -> None:
    """One launch: out = rms_norm(x) @ weight^T; a program takes up to 16 rows, or a large tile of many."""
    norm, product = emit.call("norm"), emit.call("product")
    assert isinstance(norm.node, RmsNorm)
    x, gain = (emit.view(value) for value in norm.args)
    weight, out = emit.view(product.args[1]), emit.view(product.results[0])
    rows, n, k = x.shape[0], *weight.shape
    arguments: dict[str, Argument] = {
        "out_ptr": out,
        "x_ptr": x,
        "gain_ptr": gain,
        "weight_ptr": weight,
        "x_stride": x.row_stride,
        "out_stride": out.row_stride,
    }
    sizes: dict[str, Constant] = {"ROWS": rows, "N": n, "K": k, "EPS": norm.node.eps}
    few = split_tiles(rows, k, itemsize=x.dtype.itemsize)
    few_grid = (cdiv(n, few.block_n), cdiv(rows, few.block_m))
    # a context asks for a third of the outputs only: too few tiles of many rows to fill a GPU
    if rows <= FEW_ROWS or (rows <= SOME_ROWS and prod(few_grid) <= RESIDENT_PROGRAMS):
        emit.launch(
            "in_proj",
            "normed_gemv.normed_gemv",
            grid=few_grid,
            arguments=arguments,
            constants=sizes | few.constants,
            num_warps=few.num_warps,
            num_stages=few.num_stages,
        )
        return
    many = gemm_tiles(rows, n, k, itemsize=x.dtype.itemsize)
    emit.launch(
        "in_proj",
        "normed_gemm.normed_gemm",
        grid=(cdiv(rows, many.block_m), cdiv(n, many.block_n)),
        arguments=arguments,
        constants=sizes | many.constants,
        num_warps=many.num_warps,
        num_stages=many.num_stages,
    )
