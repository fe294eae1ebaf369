"""entry: the token's embedding and the hidden, each through its norm, side by side through eh_proj."""

from circuit import Call
from compiler.triton.emission import RegionEmission
from compiler.triton.launch import Argument, Constant
from compiler.triton.tiles import FEW_ROWS, cdiv, gemm_tiles, split_tiles
from nodes import RmsNorm


def lower_entry(emit: RegionEmission) -> None:
    """One launch: out = concat(norm(table[token]), norm(hidden)) @ weight^T.

    The hidden passes the target's norm first where the region has it. A program takes all rows where they are few, a
    tile of them else.
    """
    arguments, sizes = _operands(emit)
    itemsize = emit.view(emit.call("eh_proj").args[1]).dtype.itemsize
    rows, n, k = (int(sizes[name]) for name in ("ROWS", "N", "K"))
    if rows <= FEW_ROWS:
        few = split_tiles(rows, k, itemsize=itemsize, products=2)
        emit.launch(
            "entry",
            "entry.entry_gemv",
            grid=(cdiv(n, few.block_n),),
            arguments=arguments,
            constants=sizes | few.constants,
            num_warps=few.num_warps,
            num_stages=few.num_stages,
        )
        return
    many = gemm_tiles(rows, n, k, itemsize=itemsize)
    emit.launch(
        "entry",
        "normed_gemm.entry_gemm",
        grid=(cdiv(rows, many.block_m), cdiv(n, many.block_n)),
        arguments=arguments,
        constants=sizes | many.constants,
        num_warps=many.num_warps,
        num_stages=many.num_stages,
    )


def _operands(emit: RegionEmission) -> tuple[dict[str, Argument], dict[str, Constant]]:
    """What the kernel of few rows and that of many take alike: arguments, sizes and scalars."""
    embedded, e_norm, h_norm = emit.call("embedded"), emit.call("e_norm"), emit.call("h_norm")
    product, target_norms = emit.call("eh_proj"), emit.calls("target_norm")
    # a kernel has no pointer that is None: without a target norm it takes hnorm's twice and reads the second
    first = target_norms[0] if target_norms else h_norm
    token, table = (emit.view(value) for value in embedded.args)
    hidden, weight, out = emit.view(first.args[0]), emit.view(product.args[1]), emit.view(product.results[0])
    arguments: dict[str, Argument] = {
        "out_ptr": out,
        "token_ptr": token,
        "table_ptr": table,
        "hidden_ptr": hidden,
        "target_gain_ptr": emit.view(first.args[1]),
        "embedding_gain_ptr": emit.view(e_norm.args[1]),
        "hidden_gain_ptr": emit.view(h_norm.args[1]),
        "weight_ptr": weight,
        "hidden_stride": hidden.row_stride,
        "out_stride": out.row_stride,
    }
    sizes: dict[str, Constant] = {
        "ROWS": hidden.shape[0],
        "N": weight.shape[0],
        "K": hidden.shape[1],
        "TARGET_EPS": _eps(first),
        "EMBEDDING_EPS": _eps(e_norm),
        "HIDDEN_EPS": _eps(h_norm),
        "HAS_TARGET_NORM": bool(target_norms),
    }
    return arguments, sizes


def _eps(call: Call) -> float:
    assert isinstance(call.node, RmsNorm)
    return call.node.eps
