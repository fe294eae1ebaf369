"""Tiles: what kernels are launched with, by sizes alone. No timing happens here: a serving process must not tune."""

from dataclasses import dataclass

# up to so many rows a product is bound by the bytes of its weight, and one program takes them all
FEW_ROWS = 16
# up to so many, tiles of FEW_ROWS rows are the better ones where the weight is small
SOME_ROWS = 64
# programs that keep most of a large GPU's multiprocessors, 132 to 148, at work; and those that run at once, two on each
MANY_PROGRAMS = 96
RESIDENT_PROGRAMS = 264


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


@dataclass(frozen=True, slots=True)
class SplitTiles:
    """Tiles of a product of few rows whose summands the warps of a program share out: `parts` runs of `part_size`."""

    parts: int
    part_size: int
    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    @property
    def constants(self) -> dict[str, int]:
        """The constexprs of a kernel that is launched with them."""
        return {
            "PARTS": self.parts,
            "PART_SIZE": self.part_size,
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "NUM_STAGES": self.num_stages,
        }


def split_tiles(rows: int, k: int, *, itemsize: int, products: int = 1) -> SplitTiles:
    """Return tiles for up to FEW_ROWS rows at a time with a weight of `k` summands, or `products` of them in one loop.

    Sixteen outputs and four warps, a warp to a part: no warp repeats another's products, and 50 to 70 KB of weight are
    on their way from each program. No spills and 16-byte loads in bf16 for 1 to 16 rows on Triton 3.6 and 3.9.
    """
    block_m, parts = power_of_two(min(rows, FEW_ROWS)), 4
    # two programs share the memory of a multiprocessor
    most = (512 if block_m <= 4 else 256) // (itemsize * products)
    # a tensor core wants 16 summands at least
    block_k = min(most, max(16, power_of_two(cdiv(k, parts))))
    return SplitTiles(
        parts=parts,
        part_size=cdiv(cdiv(k, parts), block_k) * block_k,
        block_m=block_m,
        block_n=16,
        block_k=block_k,
        num_warps=parts,
        num_stages=3 if block_m <= 4 else 4,
    )


@dataclass(frozen=True, slots=True)
class GemmTiles:
    """Tiles of a product of many rows: rows, outputs and summands of a program, warps, and loads in flight."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    @property
    def constants(self) -> dict[str, int]:
        """The constexprs of a kernel that is launched with them."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "NUM_STAGES": self.num_stages,
        }


def gemm_tiles(rows: int, n: int, k: int, *, itemsize: int) -> GemmTiles:
    """Return tiles for many rows with a weight [n, k]: the largest of which there are MANY_PROGRAMS, else the smallest.

    Sixty-four rows are what the four warps of a tensor core product take at once. A longer run of summands would spill,
    or read its gain two bytes at a time and outside the pipeline; so the pipeline is deep.
    """
    for block_m, block_n in ((128, 64), (64, 64), (64, 32), (64, 16)):
        if cdiv(rows, block_m) * cdiv(n, block_n) >= MANY_PROGRAMS:
            break
    return GemmTiles(
        block_m=block_m,
        block_n=block_n,
        block_k=min(64, max(16, power_of_two(k))),
        num_warps=block_m // 16,
        num_stages=12 // itemsize,
    )
