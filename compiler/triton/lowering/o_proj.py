"""o_proj: the product of the joined heads, and the residual around attention."""

from compiler.triton.emission import RegionEmission
from compiler.triton.tiles import cdiv, split_tiles


def lower_o_proj(emit: RegionEmission) -> None:
    """One launch: out = residual + x @ weight^T."""
    product, residual = emit.call("product"), emit.call("residual")
    x, weight = (emit.view(value) for value in product.args)
    held, out = emit.view(residual.args[0]), emit.view(residual.results[0])
    rows, n, k = x.shape[0], *weight.shape
    tiles = split_tiles(rows, k, itemsize=x.dtype.itemsize)
    emit.launch(
        "o_proj",
        "gemv.gemv_residual",
        grid=(cdiv(n, tiles.block_n), cdiv(rows, tiles.block_m)),
        arguments={
            "out_ptr": out,
            "x_ptr": x,
            "weight_ptr": weight,
            "residual_ptr": held,
            "x_stride": x.row_stride,
            "out_stride": out.row_stride,
            "residual_stride": held.row_stride,
        },
        constants={"ROWS": rows, "N": n, "K": k} | tiles.constants,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
