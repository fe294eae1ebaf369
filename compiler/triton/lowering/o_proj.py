"""o_proj: the product of the joined heads, and the residual around attention."""

from compiler.triton.emission import RegionEmission
from compiler.triton.tiles import cdiv, gemv_tiles


def lower_o_proj(emit: RegionEmission) -> None:
    """One launch: out = residual + x @ weight^T."""
    product, residual = emit.call("product"), emit.call("residual")
    x, weight = (emit.view(value) for value in product.args)
    held, out = emit.view(residual.args[0]), emit.view(residual.results[0])
    rows, n, k = x.shape[0], *weight.shape
    tiles = gemv_tiles(rows, n, k)
    emit.launch(
        "o_proj",
        "gemv.gemv_residual",
        grid=(cdiv(n, tiles.block_n),),
        arguments={
            "out_ptr": out,
            "x_ptr": x,
            "weight_ptr": weight,
            "residual_ptr": held,
            "x_stride": x.row_stride,
            "out_stride": out.row_stride,
            "residual_stride": held.row_stride,
        },
        constants={
            "ROWS": rows,
            "N": n,
            "K": k,
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "BLOCK_K": tiles.block_k,
            "NUM_STAGES": tiles.num_stages,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
