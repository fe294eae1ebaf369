"""AppendCache: rows into a paged cache."""

import torch
from torch import Tensor

from circuit import Cost, Node, StateType, TensorType, i64, total_bytes


class AppendCache(Node):
    """Write each row at its slot; a slot of -1 writes nothing that anyone reads.

    Ports:    cache paged T[blocks, entries, d] - rows T[n, d] - slots i64[n], flat over blocks and entries
    Result:   the next version of the cache; block 0, which belongs to nobody, takes the skipped rows
    Numerics: exact copy
    State:    writes cache; live slots must differ from one another
    Source:   paged latent cache and paged pool keys
    """

    results = ("cache",)
    writes = ("cache",)

    def infer(self, cache: StateType, rows: TensorType, slots: TensorType) -> StateType:
        if cache.layout != "paged" or len(cache.tensor.shape) != 3:
            raise self.reject("cache", cache, "a paged state [blocks, entries, d]")
        if rows.dtype != cache.tensor.dtype or len(rows.shape) != 2 or rows.shape[1] != cache.tensor.shape[2]:
            raise self.reject("rows", rows, f"{cache.tensor.with_shape('n', cache.tensor.shape[2])} to match {cache}")
        if slots != i64(rows.shape[0]):
            raise self.reject("slots", slots, f"{i64(rows.shape[0])}, one per row")
        return cache

    def reference(self, cache: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
        entries = cache.flatten(0, 1)
        # skipped rows share entry 0 of the null block, whichever of them lands there
        target = torch.where(slots < 0, 0, slots)
        return entries.index_put((target,), rows).view_as(cache)

    def cost(self, cache: StateType, rows: TensorType, slots: TensorType) -> Cost:
        return Cost(bytes_read=total_bytes(rows, slots), bytes_written=rows.num_bytes())
