"""q_up: query and index query of the normed residual, beside the writes of the row into every cache."""

from compiler.triton.emission import RegionEmission
from compiler.triton.lowering.context_writes import write_arguments
from compiler.triton.tiles import GemvTiles, cdiv, gemv_tiles, power_of_two
from nodes import Increment, RmsNorm


def lower_q_up(emit: RegionEmission) -> None:
    """One launch: norm(q_a) @ weight^T, and a program for each row's cache writes and next position.

    A live row must be the only one of its sequence.
    """
    norm, product = emit.call("q_norm"), emit.call("product")
    assert isinstance(norm.node, RmsNorm)
    q_a, gain = (emit.view(value) for value in norm.args)
    weight, out = emit.view(product.args[1]), emit.view(product.results[0])
    writes, constants = write_arguments(emit)
    steps = emit.calls("next_position")
    by = [step.node.by for step in steps if isinstance(step.node, Increment)]
    rows, n, k = q_a.shape[0], *weight.shape
    tiles = _tiles(rows, n, k)
    emit.launch(
        "q_up",
        "q_up.q_up",
        grid=(rows + cdiv(n, tiles.block_n) * cdiv(rows, tiles.block_m),),
        arguments={
            "product_ptr": out,
            # nothing is written there without the flag
            "next_position_ptr": emit.view(steps[0].results[0]) if steps else writes["position_ptr"],
            "q_a_ptr": q_a,
            "q_gain_ptr": gain,
            "weight_ptr": weight,
            "q_a_stride": q_a.row_stride,
            "product_stride": out.row_stride,
            **writes,
        },
        constants={
            "ROWS": rows,
            "N": n,
            "K": k,
            "Q_EPS": norm.node.eps,
            "POSITION_STEP": by[0] if by else 0,
            "HAS_NEXT_POSITION": bool(steps),
            "BLOCK_M": tiles.block_m,
            "BLOCK_N": tiles.block_n,
            "BLOCK_K": tiles.block_k,
            "NUM_STAGES": tiles.num_stages,
            **constants,
        },
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def _tiles(rows: int, n: int, k: int) -> GemvTiles:
    if rows <= 8:
        return gemv_tiles(rows, n, k)
    # 475 instructions for 8 KiB of weight against 891: the norm's sums of 16 rows serve twice the outputs
    return GemvTiles(block_m=16, block_n=32, block_k=min(128, max(16, power_of_two(k))), num_warps=1, num_stages=4)
