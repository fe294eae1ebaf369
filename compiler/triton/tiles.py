"""Tiles: what kernels are launched with, by sizes alone. No timing happens here: a serving process must not tune."""

from dataclasses import dataclass


def cdiv(value: int, by: int) -> int:
    """Return value / by, rounded up."""
    return -(-value // by)


def power_of_two(value: int) -> int:
    """Return the least power of two that is not below `value`."""
    return 1 << max(value - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class GemvTiles:
    """Tiles of a product of few rows: rows, outputs and summands of a program, warps, and loads in flight."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def gemv_tiles(rows: int, n: int, k: int) -> GemvTiles:
    """Return tiles for `rows` rows with a weight [n, k].

    Sixteen outputs and one warp: no spills and 16-byte loads for 1 to 16 rows on Triton 3.6 and 3.9.
    """
    return GemvTiles(
        block_m=power_of_two(rows),
        block_n=16,
        # a tensor core wants 16 summands at least
        block_k=min(256, max(16, power_of_two(k))),
        num_warps=1,
        num_stages=3,
    )
